"""The server side of the Attention tab: static files, and what event files hold, as JSON and packed maps.

All routes lie under /data/plugin/attention. What does not exist gives 404, what makes no sense 400.

    /series                                       every run's series: {run: {tag: {...}}}
    /captures?run=&tag=[&newer_than=WALL_TIME]    a series' steps, with the scores of those written since
    /maps?run=&tag=&step=&wall_time=&layer=       one layer's maps, as event_format packs them
"""

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tensorboard import plugin_util
from tensorboard.backend import http_util
from tensorboard.data.provider import BlobSequenceDatum, RunTagFilter
from tensorboard.errors import InvalidArgumentError, NotFoundError, PublicError
from tensorboard.plugins.base_plugin import FrontendMetadata, TBContext, TBPlugin
from tensorboard.util import tb_logging
from werkzeug import Request, Response

from gpt.attention_maps.event_format import PLUGIN_NAME, unpack_scores, unpack_series

log = tb_logging.get_logger()

_STATIC = Path(__file__).parent / "static"
_CONTENT_TYPES = {".js": "text/javascript", ".css": "text/css"}
_READERS = 32
_MAX_STEPS = 100_000  # of one series; TensorBoard itself keeps a thousand in memory

WSGIApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class AttentionPlugin(TBPlugin):  # type: ignore[misc]
    """See the module."""

    plugin_name = PLUGIN_NAME

    def __init__(self, context: TBContext) -> None:
        self._data = context.data_provider

    def get_plugin_apps(self) -> dict[str, WSGIApp]:
        """The routes."""
        routes = {f"/{path.name}": _static(path) for path in _STATIC.iterdir() if path.suffix in _CONTENT_TYPES}
        routes |= {"/series": self._series, "/captures": self._captures, "/maps": self._maps}
        return {path: _answering(route) for path, route in routes.items()}

    def is_active(self) -> bool:
        """False: TensorBoard shows the tab by itself once a run has such data."""
        return False

    def frontend_metadata(self) -> FrontendMetadata:
        """What the tab is called and which script draws it."""
        return FrontendMetadata(es_module_path="/index.js", tab_name="Attention")

    def _series(self, request: Request) -> Response:
        found = self._data.list_blob_sequences(
            plugin_util.context(request.environ),
            experiment_id=plugin_util.experiment_id(request.environ),
            plugin_name=PLUGIN_NAME,
        )
        runs: dict[str, dict[str, Any]] = {}
        for run, tags in found.items():
            for tag, series in tags.items():
                try:
                    content = unpack_series(series.plugin_content)
                except ValueError as error:
                    log.warning("Attention: leaving out %s of run %s: %s", tag, run, error)
                    continue
                runs.setdefault(run, {})[tag] = content | {"last_wall_time": series.max_wall_time}
        return _json(request, runs)

    def _captures(self, request: Request) -> Response:
        newer_than = _number(request, "newer_than", float, default=0.0)
        data = self._read(request)
        # The fast data server takes 40 ms for a blob, however small, and many at once take no longer.
        with ThreadPoolExecutor(_READERS) as pool:
            scores = pool.map(
                lambda datum: self._scores(request, datum) if datum.wall_time > newer_than else None, data
            )
        captures = []
        for datum, own in zip(data, scores, strict=True):
            capture = {"step": datum.step, "wall_time": datum.wall_time, "has_maps": len(datum.values) > 1}
            if datum.wall_time <= newer_than:
                captures.append(capture)
            elif own is not None:
                captures.append(capture | {"scores": own})
        return _json(request, captures)

    def _scores(self, request: Request, datum: BlobSequenceDatum) -> Any:
        """The scores of all heads at one step; None, with a line in the log, where they are damaged."""
        try:
            return unpack_scores(self._blob(request, datum, 0))
        except ValueError as error:
            log.warning("Attention: leaving out step %d: %s", datum.step, error)
            return None

    def _maps(self, request: Request) -> Response:
        step, layer = _number(request, "step", int), _number(request, "layer", int)
        wall_time = _number(request, "wall_time", float)
        for datum in self._read(request):
            if datum.step == step and datum.wall_time == wall_time and 0 <= layer < len(datum.values) - 1:
                return http_util.Respond(
                    request,
                    self._blob(request, datum, layer + 1),
                    "application/octet-stream",
                    content_encoding="gzip",
                    expires=3600,  # its wall time is in its address: what lies there never changes
                )
        raise NotFoundError(f"no maps of layer {layer} at step {step}")

    def _read(self, request: Request) -> list[BlobSequenceDatum]:
        """All steps of the series that is asked for, in order."""
        run, tag = request.args.get("run"), request.args.get("tag")
        if run is None or tag is None:
            raise InvalidArgumentError("run and tag are needed")
        found = self._data.read_blob_sequences(
            plugin_util.context(request.environ),
            experiment_id=plugin_util.experiment_id(request.environ),
            plugin_name=PLUGIN_NAME,
            downsample=_MAX_STEPS,
            run_tag_filter=RunTagFilter(runs=[run], tags=[tag]),
        )
        if tag not in found.get(run, {}):
            raise NotFoundError(f"run {run!r} has no series {tag!r}")
        return [datum for datum in found[run][tag] if datum.values]

    def _blob(self, request: Request, datum: BlobSequenceDatum, index: int) -> bytes:
        return self._data.read_blob(plugin_util.context(request.environ), blob_key=datum.values[index].blob_key)


def _answering(route: Callable[[Request], Response]) -> WSGIApp:
    """A route that answers, whatever happens in it."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        request = Request(environ)
        try:
            response = route(request)
        except PublicError as error:
            response = http_util.Respond(request, str(error), "text/plain", code=error.http_code)
        except Exception as error:
            log.exception("Attention: %s failed", request.path)
            response = http_util.Respond(request, f"{type(error).__name__}: {error}", "text/plain", code=500)
        return response(environ, start_response)

    return answer


def _static(path: Path) -> Callable[[Request], Response]:
    def serve(request: Request) -> Response:
        return http_util.Respond(request, path.read_bytes(), _CONTENT_TYPES[path.suffix])

    return serve


def _json(request: Request, content: Any) -> Response:
    return http_util.Respond(request, json.dumps(content), "application/json")


def _number(request: Request, name: str, kind: Callable[[str], Any], default: Any = None) -> Any:
    text = request.args.get(name)
    if text is None and default is not None:
        return default
    try:
        return kind(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"{name} must be a number") from None
