"""Server side of the Attention tab: static files, JSON, and packed maps.

All routes lie under /data/plugin/attention. A missing resource is 404, an invalid parameter 400. What is damaged in an
event file is left out, with a line in the log: one bad run hides no other.

    /series                                       all series: {run: {tag: {...}}}
    /captures?run=&tag=[&newer_than=WALL_TIME]    the steps of a series, with scores if written later than WALL_TIME
    /maps?run=&tag=&step=&wall_time=&layer=       the maps of one layer, as event_format packs them
    /losses?run=                                  losses over steps, and by position of each validation
"""

import json
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from tensorboard import plugin_util
from tensorboard.backend import http_util
from tensorboard.data.provider import BlobSequenceDatum, BlobSequenceTimeSeries, RunTagFilter
from tensorboard.errors import InvalidArgumentError, NotFoundError
from tensorboard.plugins.base_plugin import FrontendMetadata, TBContext, TBPlugin
from tensorboard.util import tb_logging
from werkzeug import Request, Response

from gpt.attention_maps.event_format import (
    LOSS_TAG,
    PLUGIN_NAME,
    check_layer,
    unpack_losses,
    unpack_scores,
    unpack_series,
)

log = tb_logging.get_logger()

_STATIC = Path(__file__).parent / "static"
_MIME_TYPES = {".js": "text/javascript", ".css": "text/css"}
_READ_THREADS = 32
_MAX_STEPS = 100_000  # per series; AttentionLoader has TensorBoard keep a thousand
_MAX_BLOBS = 1025  # per step: the scores, and a layer each; a tensor can declare billions
_MAX_POINTS = 1000  # of a curve, which is TensorBoard's default too
# Losses over steps, and their tags: those of today, and of earlier event files.
_CURVES = {
    "train": ("loss/train_nats", "train/loss_nats"),
    "val": ("loss/val_nats", "val/loss_nats"),
    "first_copy": ("scores/first_copy_loss_nats", "heads/first_copy_loss_nats"),
    "second_copy": ("scores/second_copy_loss_nats", "heads/second_copy_loss_nats"),
}
_CHECKED_STEPS = 10  # the last ones of a series, of which one must be readable


class AttentionPlugin(TBPlugin):  # type: ignore[misc]
    """Serves the routes of the tab."""

    plugin_name = PLUGIN_NAME

    def __init__(self, context: TBContext) -> None:
        self._data = context.data_provider
        self._readable: dict[tuple[str, str], float] = {}  # wall time at which a series was last readable

    def get_plugin_apps(self) -> dict[str, Any]:
        """Map each route to its WSGI app."""
        routes = {"/series": self._series, "/captures": self._captures, "/maps": self._maps, "/losses": self._losses}
        routes |= {f"/{path.name}": partial(_static, path) for path in _STATIC.iterdir() if path.suffix in _MIME_TYPES}
        return {path: Request.application(route) for path, route in routes.items()}

    def is_active(self) -> bool:
        """Return False: TensorBoard enables the tab itself if a run has data for it."""
        return False

    def frontend_metadata(self) -> FrontendMetadata:
        """Name the tab and its script."""
        return FrontendMetadata(es_module_path="/index.js", tab_name="Attention")

    def _series(self, request: Request) -> Response:
        listed = self._data.list_blob_sequences(**_scope(request))
        found = [(run, tag, series) for run, tags in listed.items() for tag, series in tags.items() if tag != LOSS_TAG]
        with ThreadPoolExecutor(_READ_THREADS) as pool:
            described = list(pool.map(lambda where: self._describe(request, *where), found))
        runs: dict[str, dict[str, Any]] = {}
        for (run, tag, _), content in zip(found, described, strict=True):
            if content is not None:
                runs.setdefault(run, {})[tag] = content
        return _json(request, runs)

    def _describe(self, request: Request, run: str, tag: str, series: BlobSequenceTimeSeries) -> dict[str, Any] | None:
        """Describe a series; None if it is damaged."""
        try:
            content = unpack_series(series.plugin_content) | {"last_wall_time": series.max_wall_time}
            if series.max_length > _MAX_BLOBS or not math.isfinite(series.max_wall_time):
                raise ValueError(f"it has {series.max_length} blobs at the wall time {series.max_wall_time}")
            if self._readable.get((run, tag)) != series.max_wall_time:
                last = reversed(self._read(request, run, tag)[-_CHECKED_STEPS:])
                if not any(self._capture(request, run, 0.0, datum) for datum in last):
                    raise ValueError("none of its last steps can be read")
                self._readable[run, tag] = series.max_wall_time
            return content
        except Exception as error:  # TensorBoard's readers may raise anything on bytes that may be anything
            _warn_once(f"Attention: skipping {tag!r:.100} of run {run!r}: {error}")
            return None

    def _captures(self, request: Request) -> Response:
        run, tag = _run_and_tag(request)
        capture = partial(self._capture, request, run, _number(request, "newer_than", float, default="0"))
        # The fast data server takes 40 ms per blob of any size, and serves many concurrently in the same time.
        with ThreadPoolExecutor(_READ_THREADS) as pool:
            captures = list(pool.map(capture, self._read(request, run, tag)))
        return _json(request, [capture for capture in captures if capture is not None])

    def _capture(self, request: Request, run: str, newer_than: float, step: BlobSequenceDatum) -> dict[str, Any] | None:
        """Describe one step, with its scores if it is newer; None if they are damaged."""
        num_maps = len(step.values) - 1
        capture = {"step": step.step, "wall_time": step.wall_time, "has_maps": num_maps > 0}
        if step.wall_time > newer_than:
            try:
                capture |= unpack_scores(self._blob(request, step, 0))
                if num_maps not in (0, num_layers := len(capture["scores"]["sink"])):
                    raise ValueError(f"it has the maps of {num_maps} layers; expected {num_layers}")
            except Exception as error:  # as above
                _warn_once(f"Attention: skipping step {step.step} of run {run!r}: {error}")
                return None
        return capture

    def _maps(self, request: Request) -> Response:
        step, layer = _number(request, "step", int), _number(request, "layer", int)
        wall_time = _number(request, "wall_time", float)
        run, tag = _run_and_tag(request)
        found = [datum for datum in self._read(request, run, tag) if (datum.step, datum.wall_time) == (step, wall_time)]
        if not found or not 0 <= layer < len(found[0].values) - 1:
            raise NotFoundError(f"layer {layer} has no maps at step {step}")
        with ThreadPoolExecutor(2) as pool:
            listed = pool.submit(self._data.list_blob_sequences, **_scope(request), run_tag_filter=_filter(run, tag))
            scores = pool.submit(self._blob, request, found[0], 0)
            blob = self._blob(request, found[0], layer + 1)
        try:
            labels = unpack_series(listed.result()[run][tag].plugin_content)["labels"]
            check_layer(blob, len(unpack_scores(scores.result())["scores"]["sink"][layer]), len(labels))
        except ValueError as error:
            raise NotFoundError(f"layer {layer} at step {step} is damaged: {error}") from None
        # It may be cached, because the URL contains the wall time: its content never changes.
        return http_util.Respond(request, blob, "application/octet-stream", content_encoding="gzip", expires=3600)

    def _losses(self, request: Request) -> Response:
        """Losses of a run over steps, and by position at each of its validations."""
        by_position: list[dict[str, Any]] = []
        run = request.args["run"]
        listed = self._data.list_blob_sequences(**_scope(request), run_tag_filter=_filter(run, LOSS_TAG))
        for step in self._read(request, run, LOSS_TAG) if run in listed else ():
            try:
                by_position.append({"step": step.step} | unpack_losses(self._blob(request, step, 0)))
            except ValueError as error:
                _warn_once(f"Attention: skipping the losses of step {step.step}: {error}")
        return _json(request, {"by_position": by_position} | self._curves(request, run))

    def _curves(self, request: Request, run: str) -> dict[str, list[tuple[int, float]]]:
        tags = [tag for tags in _CURVES.values() for tag in tags]
        options = {"downsample": _MAX_POINTS, "run_tag_filter": _filter(run, *tags)}
        found = self._data.read_scalars(**_scope(request) | {"plugin_name": "scalars"}, **options).get(run, {})
        return {
            name: [
                (point.step, point.value) for tag in tags for point in found.get(tag, ()) if math.isfinite(point.value)
            ]
            for name, tags in _CURVES.items()
        }

    def _read(self, request: Request, run: str, tag: str) -> list[BlobSequenceDatum]:
        """Read the steps of a series, in order."""
        options = {"downsample": _MAX_STEPS, "run_tag_filter": _filter(run, tag)}
        found = self._data.read_blob_sequences(**_scope(request), **options)
        if tag not in found.get(run, {}):
            raise NotFoundError(f"run {run!r} has no series {tag!r}")
        return [datum for datum in found[run][tag] if datum.values and math.isfinite(datum.wall_time)]

    def _blob(self, request: Request, datum: BlobSequenceDatum, index: int) -> bytes:
        return self._data.read_blob(plugin_util.context(request.environ), blob_key=datum.values[index].blob_key)


def _scope(request: Request) -> dict[str, Any]:
    """Return the arguments that every listing of the data provider takes."""
    environ = request.environ
    experiment_id = plugin_util.experiment_id(environ)
    return {"ctx": plugin_util.context(environ), "experiment_id": experiment_id, "plugin_name": PLUGIN_NAME}


def _run_and_tag(request: Request) -> tuple[str, str]:
    return request.args["run"], request.args["tag"]  # without one, werkzeug answers 400


def _filter(run: str, *tags: str) -> RunTagFilter:
    return RunTagFilter(runs=[run], tags=tags)


@lru_cache(1000)
def _warn_once(message: str) -> None:
    """Log a warning, once: a browser asks for the same every three seconds."""
    log.warning("%s", message)


def _static(path: Path, request: Request) -> Response:
    return http_util.Respond(request, path.read_bytes(), _MIME_TYPES[path.suffix])


def _json(request: Request, content: Any) -> Response:
    return http_util.Respond(request, json.dumps(content), "application/json")


def _number(request: Request, name: str, kind: Callable[[str], Any], default: Any = None) -> Any:
    text = request.args.get(name, default)
    try:
        return kind(text)
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"{name} is {text!r}; expected a number") from None
