"""The endpoints that tell of the server itself: health, metrics, and the page's view of the engine."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from qpack_runtime.serve.http.body import json_response
from qpack_runtime.serve.metrics import CONTENT_TYPE
from qpack_runtime.serve.service import Service


class State:
    """The endpoints of one server; they answer from the first moment on."""

    def __init__(self, service: Service):
        self._service = service

    async def livez(self, request: Request) -> Response:
        status, body = self._service.readiness.livez(self._service.engine.busy_since)
        return json_response(body, status)

    async def startupz(self, request: Request) -> Response:
        status, body = self._service.readiness.startupz()
        return json_response(body, status)

    async def readyz(self, request: Request) -> Response:
        status, body = self._service.readiness.readyz()
        return json_response(body, status)

    async def metrics(self, request: Request) -> Response:
        text = await asyncio.to_thread(self._service.metrics.render)  # milliseconds, and a GPU's driver is asked
        return Response(text, headers={"content-type": CONTENT_TYPE})

    async def stats(self, request: Request) -> Response:
        self._service.require_ready()
        service, served = self._service, self._service.served
        booted = served.booted
        steps, seconds = booted.engine.runs, service.engine.spent
        buckets = [
            {
                "name": bucket["name"], "program": bucket["program"], "rows": bucket["rows"],
                "context": bucket["context"], "ready": bucket["name"] in service.readiness.watch.ready,
                "steps": steps[bucket["name"]], "seconds": round(seconds.get(bucket["name"], 0.0), 6),
            }
            for bucket in booted.bundle.manifest["buckets"]
        ]  # fmt: skip
        return json_response({
            "model": served.name, "bundle_id": booted.bundle.bundle_id, "device": booted.device, "ready": True,
            "context": served.context, "slots": booted.engine.slots, "running": service.running,
            "waiting": service.waiting, "queue_limit": service.queue_limit, "defaults": served.defaults,
            "buckets": buckets,
        })  # fmt: skip
