from pathlib import Path

import pytest

from gpt.data.sources import read_documents


def test_pydocs_is_the_interpreters_own_reference() -> None:
    from pydoc_data.topics import topics

    documents = list(read_documents(["pydocs"]))
    assert {document.text for document in documents} == {text for text in topics.values() if text}
    assert any('"import"' in document.text for document in documents)


def test_files_keep_their_line_ends_and_lose_their_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\n")
    (document,) = read_documents([str(tmp_path / "a.txt")])
    assert document.text == "one\r\ntwo\n"


def test_folders_are_searched_in_the_order_of_paths(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "a.md", "sub/c.TXT", "image.png"):
        (tmp_path / name).write_text(name)
    assert [document.text for document in read_documents([str(tmp_path)])] == ["a.md", "b.txt", "sub/c.TXT"]


def test_several_sources_in_the_order_given(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A")
    (tmp_path / "b.txt").write_text("B")
    names = [str(tmp_path / "b.txt"), str(tmp_path / "a.txt")]
    assert [document.text for document in read_documents(names)] == ["B", "A"]


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"fine\n\xff\xfe")
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for source, words in [
        ("bad.txt", r"bad\.txt.*0xff.*offset 5"),
        ("empty.txt", r"empty\.txt holds no text"),
        ("missing.txt", r"no file or folder .*missing\.txt"),
        ("folder", r"folder.*\.txt or \.md"),
    ]:
        with pytest.raises(ValueError, match=words):
            list(read_documents([str(tmp_path / source)]))
