import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gpt.checkpoint import load_model
from gpt.errors import UserError
from gpt.huggingface import read_pretrained, write_pretrained
from gpt.model.config import GPTConfig
from gpt.model.transformer import GPT
from gpt.tokenizer import Tokenizer
from gpt.tokenizer_json import read_tokenizer, tokenizer_json
from tests.runs import same_tensors

SHAPES = {
    "one layer": GPTConfig(257, context_length=16, d_model=8, num_layers=1, num_heads=1, dropout=0.0),
    "several": GPTConfig(257, context_length=32, d_model=48, num_layers=3, num_heads=4, dropout=0.1),
    "no qkv bias": GPTConfig(
        257, context_length=24, d_model=32, num_layers=2, num_heads=8, dropout=0.0, qkv_bias=False
    ),
}


def _random(config: GPTConfig) -> GPT:
    """A model with random weights, biases and norms, so that swapping any two changes its logits."""
    torch.manual_seed(0)
    model = GPT(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return model


def _write(folder: Path, config: GPTConfig = SHAPES["several"], tokenizer: str = "bytes") -> GPT:
    model = _random(config)
    write_pretrained(folder, config, model.state_dict(), Tokenizer(tokenizer))
    return model


@pytest.mark.parametrize("name", SHAPES)
def test_transformers_loads_an_exported_model_with_the_same_logits(name: str, tmp_path: Path) -> None:
    from transformers import GPT2LMHeadModel

    ours = _write(tmp_path / "hf", SHAPES[name])
    theirs, report = GPT2LMHeadModel.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert theirs.lm_head.weight is theirs.transformer.wte.weight
    ids = torch.randint(0, 257, (3, 16), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(theirs.eval()(ids).logits, ours(ids), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("heads,layers", [(1, 1), (4, 3)])
def test_a_model_saved_by_transformers_has_the_same_logits(heads: int, layers: int, tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(2)
    theirs = GPT2LMHeadModel(
        GPT2Config(vocab_size=50257, n_positions=32, n_embd=16, n_layer=layers, n_head=heads, initializer_range=0.3)
    ).eval()
    theirs.save_pretrained(tmp_path / "hf")
    ours, tokenizer = load_model(tmp_path / "hf")
    assert tokenizer.name == "gpt2"
    ids = torch.randint(0, 50257, (2, 32), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ours(ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SHAPES)
def test_an_exported_and_imported_model_has_equal_tensors(name: str, tmp_path: Path) -> None:
    model = _write(tmp_path / "hf", SHAPES[name])
    config, weights, _ = read_pretrained(str(tmp_path / "hf"))
    ours = model.state_dict()
    for key, tensor in weights.items():
        assert torch.equal(tensor, ours.get(key, torch.zeros_like(tensor))), key
    assert weights.keys() >= ours.keys()
    write_pretrained(tmp_path / "again", config, weights, Tokenizer("bytes"))
    first, second = (load_file(tmp_path / folder / "model.safetensors") for folder in ("hf", "again"))
    assert same_tensors(first, second)


TEXTS = [
    "",
    "Hello, world!",
    " leading\n\n  and trailing ",
    "naïve \U0001f600 漢字 don't 1234",
    "\x00\x7f\u00a0",
    "<|endoftext|>x",
]


@pytest.mark.parametrize("name", ["gpt2", "bytes"])
def test_auto_tokenizer_encodes_to_the_same_ids(name: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    ours = Tokenizer(name)
    shape = GPTConfig(ours.vocab_size, context_length=16, d_model=8, num_layers=1, num_heads=1, dropout=0.0)
    _write(tmp_path / "hf", shape, name)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert (theirs.eos_token_id, len(theirs)) == (ours.eot_id, ours.vocab_size)
    for text in TEXTS:
        expected = ours.encode_array(text, end_of_text=True).tolist()
        assert theirs(text)["input_ids"] == expected, text
        assert theirs.decode(expected) == text
    assert load_model(tmp_path / "hf")[1].name == name


def _config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**content, **changes}))

    return change


def _weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors")

    return apply


def _other_vocabulary(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (folder / "tokenizer.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    "damage,words",
    [
        (_config(model_type="llama"), "model_type is 'llama'; only 'gpt2'"),
        (_config(activation_function="relu"), "activation_function is 'relu'; only 'gelu_new' or"),
        (_config(layer_norm_epsilon=1e-6), "layer_norm_epsilon is 1e-06"),
        (_config(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx is True"),
        (_config(scale_attn_weights=False), "scale_attn_weights is False"),
        (_config(add_cross_attention=True), "add_cross_attention is True"),
        (_config(tie_word_embeddings=False), "tie_word_embeddings is False"),
        (_config(n_inner=64), r"n_inner is 64; expected null or 4 \* n_embd \(192\)"),
        (_config(vocab_size=300), "has 300 token ids and its tokenizer 'bytes' 257"),
        (_config(n_head=5), "num_heads"),
        (_config(n_layer=2), r"Unexpected key.*h\.2\."),
        (_config(n_layer=4), r"Missing key.*blocks\.3\.attention_norm\.weight"),
        (_config(n_layer=10**9), "fewer than 1000000000 layers"),
        (_config(n_layer=2.0), r"num_layers is 2\.0; it must be an integer"),
        (_weights(lambda w: w.update({"wte.weight": torch.zeros(257, 48)})), "with and without transformer"),
        (_weights(lambda w: w.update({"transformer.ln_f.bias": torch.zeros(48).int()})), "ln_f.bias is int32"),
        (_weights(lambda w: w["transformer.ln_f.bias"].fill_(float("nan"))), "not finite"),
        (_config(n_positions=None), "context_length is None; it must be an integer"),
        (_weights(lambda w: w.pop("transformer.h.1.mlp.c_fc.bias")), r"Missing key.*blocks\.1\.mlp\.fc_in\.bias"),
        (_weights(lambda w: w.update({"score.weight": torch.zeros(2)})), r"Unexpected key.*score\.weight"),
        (_weights(lambda w: w.update({"lm_head.weight": torch.zeros(257, 48)})), "untied LM head"),
        (_weights(lambda w: w.update({"transformer.wpe.weight": torch.zeros(8, 48)})), "size mismatch.*position_emb"),
        (_other_vocabulary, "byte-level BPE tokenizer that splits text as GPT-2's"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\0" * 20), "is missing or damaged"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"no model\.safetensors or .* \(pickled"),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot be used"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "not a byte-level BPE tokenizer"),
        (lambda folder: (folder / "tokenizer.json").write_text('{"model": {"vocab": [["a", 1]]}}'), "byte-level BPE"),
        (lambda folder: (folder / "config.json").write_text("[]"), "not an object"),
    ],
)  # fmt: skip
def test_unsupported_and_damaged_models_are_refused_by_name(
    damage: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    _write(tmp_path / "hf")
    damage(tmp_path / "hf")
    with pytest.raises(UserError, match=words):
        load_model(tmp_path / "hf")


def _json(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Change a JSON file of a folder; one that is not there is created."""

    def apply(folder: Path) -> None:
        content = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
        change(content)
        (folder / name).write_text(json.dumps(content))

    return apply


def _rename_sizes(content: dict[str, Any]) -> None:
    names = {"n_positions": "max_position_embeddings", "n_embd": "hidden_size", "n_layer": "num_hidden_layers"}
    for old, new in {**names, "n_head": "num_attention_heads"}.items():
        content[new] = content.pop(old)


def _saved_by_transformers(change: Callable[[Any], Any], shards: bool = False) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        from transformers import GPT2LMHeadModel

        model = change(GPT2LMHeadModel.from_pretrained(folder))
        (folder / "model.safetensors").unlink()
        model.save_pretrained(folder, max_shard_size="20KB" if shards else "1GB")
        assert (folder / "model.safetensors").exists() != shards

    return apply


@pytest.mark.parametrize(
    "save",
    {
        "shards": _saved_by_transformers(lambda model: model, shards=True),
        "shards in float16": _saved_by_transformers(lambda model: model.half(), shards=True),
        "float64": _saved_by_transformers(lambda model: model.double()),
        "without LM head": _saved_by_transformers(lambda model: model.transformer),
        "shards without LM head": _saved_by_transformers(lambda model: model.transformer.bfloat16(), shards=True),
        "saved LM head": _weights(lambda w: w.update({"lm_head.weight": w["transformer.wte.weight"].clone()})),
        "mixed precision": _weights(lambda w: w.update({name: w[name].half() for name in w if ".mlp." in name})),
        "other names of sizes": _json("config.json", _rename_sizes),
        "two names of a size": _json("config.json", lambda c: c.update(num_attention_heads=2)),
        "defaults": _json("config.json", lambda c: [c.pop(key) for key in ("model_type", "resid_pdrop")]),
        "n_ctx": _config(n_inner=None, activation_function="gelu_fast", n_ctx=8),
        "padded vocabulary": _saved_by_transformers(lambda model: model.resize_token_embeddings(264) and model),
    }.items(),
    ids=lambda item: item[0],
)
def test_what_transformers_loads_has_the_same_logits(save: tuple[str, Callable[..., None]], tmp_path: Path) -> None:
    from transformers import GPT2LMHeadModel

    _write(tmp_path)
    save[1](tmp_path)
    theirs = GPT2LMHeadModel.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ids = torch.randint(0, 257, (3, 16), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(load_model(tmp_path)[0](ids), theirs(ids).logits[..., :257], rtol=1e-4, atol=1e-4)


def test_n_ctx_stands_for_n_positions(tmp_path: Path) -> None:
    _write(tmp_path)
    _json("config.json", lambda c: c.update(n_ctx=c.pop("n_positions")))(tmp_path)
    assert load_model(tmp_path)[0].config.context_length == 32


def _add_token(content: str, token_id: int) -> Callable[[Path], None]:
    return _json("tokenizer.json", lambda c: c["added_tokens"].append({"content": content, "id": token_id}))


def test_a_pad_token_is_left_out(tmp_path: Path) -> None:
    from transformers import GPT2LMHeadModel

    _write(tmp_path)
    theirs = GPT2LMHeadModel.from_pretrained(tmp_path)
    theirs.resize_token_embeddings(258)
    theirs.save_pretrained(tmp_path)
    _add_token("<filler>", 257)(tmp_path)
    with pytest.raises(UserError, match="has the special token '<filler>'"):
        load_model(tmp_path)
    _json("tokenizer_config.json", lambda c: c.update(pad_token="<filler>"))(tmp_path)
    model, tokenizer = load_model(tmp_path)
    assert model.config.vocab_size == tokenizer.vocab_size == 257


def _replace_tokenizer(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "tokenizer.json").rename(folder / name) and None


@pytest.mark.parametrize(
    "change,words",
    [
        (_add_token("<|im_start|>", 257), r"special token '<\|im_start\|>'"),
        (_json("added_tokens.json", lambda c: c.update({"<|user|>": 257})), r"special token '<\|user\|>'"),
        (_json("tokenizer.json", lambda c: c["model"].update(merges=["a b"])), "in its merges"),
        (_json("tokenizer.json", lambda c: c.update(normalizer={"type": "Lowercase"})), "in how it splits text"),
        (_json("tokenizer.json", lambda c: c["model"].update(dropout=0.1)), "in how it splits text"),
        (_json("tokenizer.json", lambda c: c["pre_tokenizer"].update(add_prefix_space=True)), "in how it splits"),
        (_json("tokenizer_config.json", lambda c: c.update(add_prefix_space=True)), "in how it splits text"),
        (_json("tokenizer_config.json", lambda c: c.update(tokenizer_class="BertTokenizer")), "is a BertTokenizer"),
        (_json("tokenizer.json", lambda c: c["model"].pop("merges")), "is not a byte-level BPE"),
        (_json("tokenizer.json", lambda c: c["model"]["vocab"].update(a=2**40)), "has an id twice, or one that is not"),
        (_json("tokenizer.json", lambda c: c["model"]["vocab"].update(a=98)), "has an id twice, or one that is not"),
        (_json("tokenizer.json", lambda c: c["model"]["vocab"].update(a=-1)), "has an id twice, or one that is not"),
        (_json("tokenizer.json", lambda c: c["model"]["vocab"].update(a="1")), "is not a byte-level BPE"),
        (_json("tokenizer.json", lambda c: c["model"]["vocab"].pop("a")), "byte-level BPE tokenizer that splits"),
        (_json("tokenizer.json", lambda c: c["model"].update(merges=[["a"], 3])), "is not a byte-level BPE"),
        (_json("tokenizer.json", lambda c: c.update(model=[])), "is not a byte-level BPE"),
        (_json("tokenizer.json", lambda c: c.update(pre_tokenizer=None)), "is not a byte-level BPE"),
        (_json("tokenizer.json", lambda c: c.update(added_tokens=[{"content": 3}])), "is not a byte-level BPE"),
        (_replace_tokenizer("vocab.txt"), r"vocab\.txt, is not supported"),
        (_replace_tokenizer("spiece.model"), r"spiece\.model, is not supported"),
        (_replace_tokenizer("gpt.tiktoken"), r"gpt\.tiktoken, is not supported"),
    ],
)
def test_another_tokenizer_is_refused_by_name(change: Callable[[Path], None], words: str, tmp_path: Path) -> None:
    _write(tmp_path)
    change(tmp_path)
    with pytest.raises(UserError, match=words):
        load_model(tmp_path)


FOREIGN = "Été à Québec — 日本語 ‘naïve’ кот\n\tx = 12345  "


def _foreign(folder: Path, special: list[str], save: Callable[[Any, Path], Any]) -> Tokenizer:
    """A GPT-2 of another language: ids of its special tokens first, then bytes, then merges."""
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator([FOREIGN * 3], vocab_size=300, special_tokens=special)
    folder.mkdir()
    save(trained, folder)
    return trained


@pytest.mark.parametrize(
    "special,settings,end",
    [
        (["<|endoftext|>"], {}, "<|endoftext|>"),
        (["<s>", "<pad>", "</s>", "<unk>", "<mask>"], {"eos_token": "</s>"}, "</s>"),
        (["<s>", "</s>", "[PAD]"], {"eos_token": {"content": "</s>"}, "pad_token": "[PAD]"}, "</s>"),
        (["<s>"], {}, "<s>"),
    ],
    ids=["gpt2's", "RoBERTa's", "own pad", "only one"],
)
@pytest.mark.parametrize("files", ["tokenizer.json", "vocab.json and merges.txt"])
def test_a_gpt2_of_another_language_is_read_and_exported(
    special: list[str], settings: dict[str, Any], end: str, files: str, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    def save(trained: Any, folder: Path) -> None:
        if files == "tokenizer.json":
            trained.save(str(folder / files))
        else:
            trained.save_model(str(folder))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", **settings}))

    theirs = _foreign(tmp_path / "hf", special, save)
    config = GPT2Config(vocab_size=theirs.get_vocab_size(), n_positions=16, n_embd=16, n_layer=1, n_head=2)
    gpt2 = GPT2LMHeadModel(config).eval()
    gpt2.save_pretrained(tmp_path / "hf")
    model, tokenizer = load_model(tmp_path / "hf")
    ids = theirs.encode(FOREIGN).ids
    assert tokenizer.encode(FOREIGN) == ids
    assert tokenizer.decode(ids) == FOREIGN
    assert tokenizer.eot_id == theirs.token_to_id(end)
    assert tokenizer.decode([tokenizer.eot_id]) == end
    inputs = torch.tensor([ids[:16]])
    torch.testing.assert_close(model(inputs), gpt2(inputs).logits, rtol=1e-4, atol=1e-4)
    write_pretrained(tmp_path / "out", model.config, model.state_dict(), tokenizer)
    assert load_model(tmp_path / "out")[1].sha256 == tokenizer.sha256
    exported = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert exported(FOREIGN)["input_ids"] == ids
    assert exported.eos_token_id == tokenizer.eot_id


def _word_piece(folder: Path) -> None:
    from tokenizers import BertWordPieceTokenizer

    trained = BertWordPieceTokenizer()
    trained.train_from_iterator([FOREIGN] * 3, vocab_size=300)
    trained.save(str(folder / "tokenizer.json"))


def _unigram(folder: Path) -> None:
    from tokenizers import SentencePieceUnigramTokenizer

    trained = SentencePieceUnigramTokenizer()
    trained.train_from_iterator([FOREIGN] * 30, vocab_size=60, show_progress=False)
    trained.save(str(folder / "tokenizer.json"))


def _sentence_piece_bpe(folder: Path) -> None:
    from tokenizers import SentencePieceBPETokenizer

    trained = SentencePieceBPETokenizer()
    trained.train_from_iterator([FOREIGN] * 3, vocab_size=60)
    trained.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    "save,words",
    [
        (_word_piece, "tokenizer is of type WordPiece"),
        (_unigram, "tokenizer is of type Unigram"),
        (_sentence_piece_bpe, "differs from GPT-2's in how it splits text"),
        (
            lambda folder: _foreign(folder / "x", ["<a>", "<b>"], lambda t, f: t.save(str(folder / "tokenizer.json"))),
            "special token '<a>'",
        ),
        (
            lambda folder: _foreign(
                folder / "x", ["<s>", "<pad>"], lambda t, f: t.save(str(folder / "tokenizer.json"))
            ),
            r"names no eos_token",
        ),
    ],
)
def test_a_tokenizer_that_cannot_be_read_is_named(save: Callable[[Path], Any], words: str, tmp_path: Path) -> None:
    save(tmp_path)
    with pytest.raises(UserError, match=words):
        read_tokenizer(tmp_path, {}, 300)


def test_vocab_json_and_merges_txt_are_compared(tmp_path: Path) -> None:
    from transformers import GPT2Tokenizer

    model = tokenizer_json(Tokenizer("gpt2"))["model"]
    assert all(isinstance(merge, str) for merge in model["merges"])  # pairs do not load in tokenizers 0.19
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    lines = ["#version: 0.2", *model["merges"], ""]
    (tmp_path / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    assert GPT2Tokenizer.from_pretrained(tmp_path)("Hello world")["input_ids"] == [15496, 995]
    assert read_tokenizer(tmp_path, {}, 50257).name == "gpt2"
    lines[1:3] = lines[2:0:-1]
    (tmp_path / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(UserError, match="differs from 'gpt2' in its merges"):
        read_tokenizer(tmp_path, {}, 50257)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "added_tokens.json"])
@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a":' * 100_000, b"\xff{}", b""])
def test_a_json_file_that_cannot_be_parsed_is_refused(name: str, content: bytes, tmp_path: Path) -> None:
    _write(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"its {name} is not valid JSON"):
        load_model(tmp_path)


def test_a_path_that_is_not_utf8_is_written_and_refused_on_reading(tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    _write(odd)
    with pytest.raises(UserError, match="is not valid UTF-8"):
        load_model(odd)


@pytest.mark.parametrize(
    "shard_of,words",
    [
        ({}, "has no weight_map"),
        ({"weight_map": {"transformer.wte.weight": "missing.safetensors"}}, "missing.safetensors is missing"),
        ({"weight_map": {"transformer.wte.weight": "../other/model.safetensors"}}, "files in the same folder"),
        ({"weight_map": {"transformer.wte.weight": 3}}, "files in the same folder"),
    ],
)
def test_an_index_that_cannot_be_used_is_refused(shard_of: dict[str, Any], words: str, tmp_path: Path) -> None:
    _write(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(shard_of))
    with pytest.raises(UserError, match=words):
        load_model(tmp_path)


def test_old_files_with_mask_buffers_and_half_precision_are_imported(tmp_path: Path) -> None:
    model = _write(tmp_path / "hf")

    def make_old(weights: dict[str, torch.Tensor]) -> None:
        for name in list(weights):
            weights[name.removeprefix("transformer.")] = weights.pop(name).bfloat16()
        weights["h.0.attn.bias"] = torch.ones(1, 1, 32, 32)
        weights["h.0.attn.masked_bias"] = torch.tensor(-1e4)

    _weights(make_old)(tmp_path / "hf")
    loaded, _ = load_model(tmp_path / "hf")
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    torch.testing.assert_close(loaded.lm_head_weight, model.lm_head_weight, rtol=1e-2, atol=1e-2)


def test_export_refuses_a_folder_that_is_not_empty_and_an_unsupported_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "thesis").write_text("precious")
    model, tokenizer = _random(SHAPES["several"]), Tokenizer("bytes")
    with pytest.raises(UserError, match="not an empty folder"):
        write_pretrained(tmp_path, model.config, model.state_dict(), tokenizer)
    tokenizer.name = "cl100k_base"
    with pytest.raises(UserError, match="gpt2, bytes or your own"):
        write_pretrained(tmp_path / "new", model.config, model.state_dict(), tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis"]


def test_a_name_missing_on_the_hub_is_a_one_line_error() -> None:
    with pytest.raises(UserError, match=r"cannot read nobody/nothing from a folder or the Hub") as info:
        load_model("nobody/nothing")
    assert "\n" not in str(info.value)


@pytest.mark.network
def test_the_released_gpt2_generates_the_text_of_the_transformers_tests() -> None:
    model, tokenizer = load_model("openai-community/gpt2")
    assert model.num_parameters == 124_439_808
    # Greedy decoding of "The dog", from the tests of transformers.
    expected = [464, 3290, 373, 1043, 287, 257, 2214, 1474, 262, 16246, 286, 2688, 290, 2688, 27262, 13, 198, 198]
    ids = torch.tensor([tokenizer.encode("The dog")])
    while ids.shape[1] < len(expected):
        ids = torch.cat([ids, model(ids)[:, -1:].argmax(dim=-1)], dim=1)
    assert ids[0].tolist() == expected
