import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from gpt.checkpoint import load_model
from gpt.data.manifest import Manifest, SplitTokens
from gpt.data.windows import TokenWindows
from gpt.errors import UserError
from gpt.evaluation import Evaluation, LossTotals, evaluate, in_context_learning_score, loss_by_position
from gpt.generation.packed import PackedGPT, PackedLinear
from gpt.model.config import GPTConfig
from gpt.model.masks import document_ids
from gpt.model.transformer import GPT
from scripts import evaluate as script
from tests.runs import is_one_line_error


def _validation(data: Path) -> tuple[SplitTokens, TokenWindows]:
    tokens = SplitTokens(data, Manifest.load(data), "val")
    return tokens, TokenWindows(tokens, 32)


def test_every_token_has_the_same_weight_for_any_batch_size(tiny_run: Path, tiny_data: Path) -> None:
    model, _ = load_model(tiny_run)
    tokens, windows = _validation(tiny_data)
    assert windows.num_targets(len(windows) - 1) < 32  # the last window is incomplete
    total, count = 0.0, 0
    for start in range(0, len(tokens) - 1, 32):  # by brute force, window by window, in float64
        ids = torch.from_numpy(tokens.read(start, min(start + 33, len(tokens))))
        logits = model(ids[None, :-1])[0].double()
        total += F.cross_entropy(logits, ids[1:], reduction="sum").item()
        count += len(ids) - 1
    for batch_size in (1, 3, 100):
        batches = torch.utils.data.DataLoader(windows, batch_size=batch_size)
        result = evaluate(model, batches, tokens.info.utf8_bytes)
        assert result.tokens == count == len(tokens) - 1
        assert result.loss_nats == pytest.approx(total / count, rel=1e-6)
        assert result.perplexity == pytest.approx(math.exp(total / count), rel=1e-6)
        assert result.bits_per_byte == pytest.approx(total / math.log(2) / tokens.info.utf8_bytes, rel=1e-6)


@pytest.mark.parametrize("eot_id", [None, 0])
def test_losses_by_position_are_those_of_every_target(eot_id: int | None) -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(50, 40, d_model=16, num_layers=1, num_heads=1)).eval()
    inputs, targets = torch.randint(0, 50, (2, 6, 40))
    inputs[:, 13] = inputs[2, 20] = 0  # documents begin here
    targets[-1, 25:] = -1
    totals = LossTotals(eot_id)
    for rows in ([0, 1, 2, 3], [4, 5]):
        totals.add(model, {"inputs": inputs[rows], "targets": targets[rows]})
    hidden = model.transformer(inputs, document_ids(inputs, eot_id))
    log_probabilities = model.logits(hidden).double().log_softmax(-1)
    expected: dict[int, list[float]] = {}
    for row in range(6):
        position = -1
        for t in range(40):
            position = 0 if inputs[row, t] == 0 and eot_id == 0 else position + 1
            if (target := int(targets[row, t])) >= 0:
                expected.setdefault(position, []).append(-float(log_probabilities[row, t, target].detach()))
    positions, losses = loss_by_position(totals.totals())
    assert positions[:10] == list(range(10))
    assert len(positions) <= 64
    for start, end, loss in zip(positions, [*positions[1:], 40], losses, strict=True):
        values = [value for position in range(start, end) for value in expected.get(position, [])]
        assert loss == pytest.approx(sum(values) / len(values), abs=1e-5)


def test_the_in_context_learning_score_compares_positions_500_and_50() -> None:
    falling = torch.stack([1 / torch.arange(1.0, 1025), torch.ones(1024)]).double()
    score = in_context_learning_score(*loss_by_position(falling))
    assert score == pytest.approx(1 / 501 - 1 / 51, abs=2e-3)
    short = in_context_learning_score(*loss_by_position(falling[:, :64]))
    assert short == pytest.approx(1 / 63 - 1 / 31, abs=2e-3)


def test_mode_and_random_state_are_restored(tiny_run: Path, tiny_data: Path) -> None:
    model, _ = load_model(tiny_run)
    model.train()
    _, windows = _validation(tiny_data)
    batch = {name: tensor[None] for name, tensor in windows[0].items()}
    state = torch.get_rng_state()
    assert evaluate(model, [batch], 32) == evaluate(model, [batch], 32)  # dropout is off
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training


def test_a_packed_model_is_evaluated_with_its_own_lm_head(tiny_run: Path, tiny_data: Path) -> None:
    plain, _ = load_model(tiny_run)
    model = PackedGPT(plain)
    model.logits = PackedLinear(2 * plain.lm_head_weight, None)  # differs from that of the plain model
    tokens, windows = _validation(tiny_data)
    ids = torch.from_numpy(tokens.read(0, len(tokens)))
    with torch.no_grad():
        losses = [
            F.cross_entropy(model(x[None])[0].double(), y, reduction="sum").item()
            for x, y in zip(ids[:-1].split(32), ids[1:].split(32), strict=True)
        ]
    batches = torch.utils.data.DataLoader(windows, batch_size=5)
    result = evaluate(model, batches, tokens.info.utf8_bytes)
    assert result.loss_nats == pytest.approx(sum(losses) / (len(ids) - 1), rel=1e-6)


def test_script_evaluates_an_int8_model(tiny_run: Path, tiny_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses = []
    for quantize in ([], ["--quantize", "int8"]):
        assert script.main([str(tiny_run), "--data", str(tiny_data), "--device", "cpu", "--json", *quantize]) == 0
        losses.append(json.loads(capsys.readouterr().out)["loss_nats"])
    assert losses[0] != losses[1] == pytest.approx(losses[0], rel=0.01)


def test_uniform_probabilities_over_bytes_are_eight_bits_per_byte() -> None:
    result = Evaluation.from_totals(1000 * math.log(256), tokens=1000, utf8_bytes=1000)
    assert (result.perplexity, result.bits_per_byte) == pytest.approx((256, 8))


def test_the_perplexity_of_a_huge_loss_is_infinite() -> None:
    assert Evaluation.from_totals(1e6, 1, 1).perplexity == math.inf


@pytest.mark.parametrize("nats,text", [(3.38, "29.37,"), (12.5, "268337.29,"), (31.3, "3.9e+13,"), (1e6, "inf,")])
def test_a_perplexity_is_printed_in_few_digits(nats: float, text: str) -> None:
    assert f"perplexity {text}" in str(Evaluation.from_totals(nats, 1, 1))


def test_a_loss_that_is_not_finite_is_refused(tiny_run: Path, tiny_data: Path) -> None:
    model, _ = load_model(tiny_run)
    model.transformer.position_embedding.weight[7] *= float("nan")
    _, windows = _validation(tiny_data)
    with pytest.raises(UserError, match="the loss is nan: the model has diverged"):
        evaluate(model, torch.utils.data.DataLoader(windows, batch_size=5), 1000)


def test_script_reports_the_validation_loss_of_training(
    tiny_run: Path, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = torch.load(tiny_run / "best.ckpt", weights_only=True)["provenance"]["val_loss_nats"]
    assert script.main([str(tiny_run), "--data", str(tiny_data), "--device", "cpu", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result) == {"loss_nats", "perplexity", "bits_per_byte", "tokens"}
    assert result["loss_nats"] == pytest.approx(recorded, rel=1e-6)
    assert script.main([str(tiny_run), "--data", str(tiny_data), "--split", "train"]) == 0
    assert "bits per byte" in capsys.readouterr().out


def test_script_logs_its_progress(
    tiny_run: Path, tiny_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpt.cli._LINE_SECONDS", -1.0)
    assert script.main([str(tiny_run), "--data", str(tiny_data), "--batch-size", "1"]) == 0
    assert "1 of " in capsys.readouterr().err


def test_overlap_gives_context_and_counts_every_token_once(
    tiny_run: Path, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = []
    for overlap in ("0", "16", "31"):
        assert script.main([str(tiny_run), "--data", str(tiny_data), "--overlap", overlap, "--json"]) == 0
        results.append(json.loads(capsys.readouterr().out))
    assert len({result["tokens"] for result in results}) == 1
    # By brute force: each token is predicted from up to 32 tokens before it.
    model, _ = load_model(tiny_run)
    tokens, _ = _validation(tiny_data)
    ids = torch.from_numpy(tokens.read(0, len(tokens)))
    with torch.no_grad():
        losses = [
            -model(ids[None, max(0, t - 32) : t])[0, -1].log_softmax(-1)[ids[t]].item() for t in range(1, len(ids))
        ]
    assert results[2]["loss_nats"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert script.main([str(tiny_run), "--data", str(tiny_data), "--overlap", "32"]) == 2
    assert "overlap is 32; expected" in capsys.readouterr().err


def test_script_refuses_data_of_another_tokenizer(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpt.data.prepare import prepare

    prepare(["pydocs"], tmp_path / "gpt2", "gpt2")
    for arguments, words in [
        (["--data", str(tmp_path / "gpt2")], "'gpt2' (50257 ids); expected 'bytes'"),
        (["--data", str(tmp_path)], "no prepared data"),
    ]:
        assert script.main([str(tiny_run), *arguments]) == 2
        assert is_one_line_error(capsys.readouterr().err, words)
