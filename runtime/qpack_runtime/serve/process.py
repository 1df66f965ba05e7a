"""The life of a server process: listen, boot, serve, drain, end."""

import asyncio
import logging
import signal
import ssl
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import Any

import uvicorn

from qpack_runtime.boot import Booted, boot
from qpack_runtime.exchanged import refuse_exchanged
from qpack_runtime.serve.engine.thread import EngineThread
from qpack_runtime.serve.first_step import run_first_step
from qpack_runtime.serve.http.app import ENDPOINTS, make_app
from qpack_runtime.serve.http.keys import ApiKeys
from qpack_runtime.serve.http.protocol import Connection
from qpack_runtime.serve.listen import listen
from qpack_runtime.serve.logs import log, log_to_stderr
from qpack_runtime.serve.mailbox import Mailbox
from qpack_runtime.serve.metrics import Metrics
from qpack_runtime.serve.model import ServedModel
from qpack_runtime.serve.options import ServeOptions
from qpack_runtime.serve.readiness import Readiness
from qpack_runtime.serve.service import Service
from qpack_runtime.serve.settle import settle
from qpack_runtime.serve.source import Source
from qpack_runtime.serve.text.template_process import TemplateProcess
from qpack_runtime.serve.tls import tls_context
from qpack_runtime.serve.tracing import Tracing
from qpack_schemas.errors import QpackError

# Seconds for which a thread may keep the interpreter from another: how late the engine thread may learn that its step
# has ended while the event loop computes. Python's own 5 ms are longer than many steps.
SWITCH_SECONDS = 0.0005
FLUSH_SECONDS = 2  # for answers under way to reach their clients when the process ends


def serve(source: Source, boot_choices: Mapping[str, Any], options: ServeOptions) -> None:
    """Serves until a signal ends it. Raises QpackError if the boot fails, or the engine does."""
    keys = ApiKeys(options.api_key_file) if options.api_key_file else None
    tls = tls_context(options.tls_certificate, options.tls_key)
    socket = listen(options.host, options.port)
    sys.setswitchinterval(SWITCH_SECONDS)
    log_to_stderr()
    with socket:
        asyncio.run(Process(source, boot_choices, options, keys, tls).run(socket))


class Process:
    def __init__(
        self,
        source: Source,
        boot_choices: Mapping[str, Any],
        options: ServeOptions,
        keys: ApiKeys | None,
        tls: ssl.SSLContext | None,
    ):
        self._source, self._boot_choices, self._options = source, boot_choices, options
        self._keys, self._tls = keys, tls
        self._readiness, self._metrics = Readiness(), Metrics(sorted(ENDPOINTS))

    async def run(self, socket) -> None:
        """From the open port to the end."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(1, "parser"))
        self._booted: asyncio.Future[Booted] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()  # fails with what ended the engine
        self._told_to_stop = asyncio.Event()
        self._service = service = Service(self._readiness, self._metrics, self._options.queue, self._options.timeout)
        mailbox = Mailbox(self._loop)
        service.tracing = Tracing() if self._options.tracing else None
        service.engine = EngineThread(
            self._boot,
            metrics=self._metrics,
            longest_wait=self._options.longest_wait,
            on_booted=lambda booted: mailbox.post(self._booted.set_result, booted),
            deliver=lambda batch: mailbox.post(service.receive, batch),
            on_end=lambda error: mailbox.post(self._engine_ended, error),
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._told_to_stop.set)
        self._server = _Server(self._config())
        self._serving = asyncio.create_task(self._server.serve(sockets=[socket]))
        self._template: TemplateProcess | None = None
        host, port = socket.getsockname()[:2]
        log("listening", host=host, port=port, bundle=self._source.bundle.name)
        service.engine.start()
        try:
            await self._until(self._make_ready())
            await self._until(self._told_to_stop.wait())
            await self._until(self._drain())
        finally:
            await self._end()

    def _boot(self) -> Booted:
        """On the engine thread."""
        watch, source = self._readiness.watch, self._source
        if source.fetch is not None:
            watch.begin("pull")
            source.fetch()
        booted = boot(source.bundle, **self._boot_choices, watch=watch)
        watch.begin("first_step")
        run_first_step(booted)
        watch.end()
        return booted

    async def _make_ready(self) -> None:
        service, options = self._service, self._options
        stopped = asyncio.create_task(self._told_to_stop.wait())
        await asyncio.wait((self._booted, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not self._booted.done():
            return
        stopped.cancel()
        booted = self._booted.result()
        self._readiness.watch.begin("template")
        self._template = template = TemplateProcess(self._source.bundle)
        await template.start()
        self._readiness.watch.end()
        name = options.model_name or self._source.name
        service.served = served = ServedModel(booted, name, template, service.tokenizing)
        refuse_exchanged(booted.bundle)  # template and defaults have been read by now
        self._describe(booted, served)
        settle()
        self._metrics.gc_pause_seconds.install()
        self._readiness.booted = True
        self._metrics.set_ready(True)
        seconds = {phase: round(taken, 3) for phase, taken in self._readiness.watch.seconds.items()}
        log("ready", model=name, device=booted.device, seconds=seconds, notes=booted.notes or None, **booted.facts)

    def _describe(self, booted: Booted, served: ServedModel) -> None:
        manifest, watch = booted.bundle.manifest, self._readiness.watch
        memory = manifest["memory"]
        self._metrics.booted(
            version=version("qpack-llm"),
            bundle_id=booted.bundle.bundle_id,
            mode=served.mode,
            model=served.name,
            device=booted.device,
            buckets=manifest["capture_order"],
            slots=booted.engine.slots,
            queue_limit=self._options.queue,
            arena_bytes={
                "weights": memory["weights_bytes"], "state": memory["state_bytes"], "io": memory["io_bytes"],
                "work": max(memory["work_bytes"].values()),
            },
            phase_seconds=watch.seconds,
            capture_seconds=watch.seconds.get("graphs", watch.seconds.get("bind", 0.0)),
        )  # fmt: skip
        if booted.device == "cuda":
            from qpack_runtime.serve.gpu_gauges import GpuGauges

            gauges = GpuGauges()
            self._metrics.registry.register(gauges)
            if gauges.absent:
                log("gpu_gauges_absent", reason=gauges.absent)

    async def _until(self, awaited) -> None:
        """Waits for `awaited`. Raises what ended the engine, or the HTTP server, if that comes first."""
        task = asyncio.ensure_future(awaited)
        try:
            await asyncio.wait((task, self._ended, self._serving), return_when=asyncio.FIRST_COMPLETED)
            for one in (self._ended, self._serving):
                if one.done():
                    one.result()
                    raise QpackError("the server has ended, though nobody told it to")
            await task
        finally:
            task.cancel()

    async def _drain(self) -> None:
        """No request is let in any more; those that are get `drain` seconds."""
        self._readiness.draining = True
        self._metrics.set_ready(False)
        log("draining", running=self._service.running, waiting=self._service.waiting)
        self._told_to_stop.clear()  # a second signal ends the wait
        idle, again = (asyncio.create_task(one.wait()) for one in (self._service.idle, self._told_to_stop))
        await asyncio.wait((idle, again), timeout=self._options.drain, return_when=asyncio.FIRST_COMPLETED)
        for one in (idle, again):
            one.cancel()

    async def _end(self) -> None:
        engine = self._service.engine
        engine.stop(QpackError("the server is shutting down"))
        with suppress(TimeoutError, Exception):
            await asyncio.wait_for(asyncio.shield(self._ended), FLUSH_SECONDS)
        self._server.should_exit = True
        with suppress(Exception):
            await self._serving
        if self._template is not None:
            await self._template.close()
        self._service.tokenizing.shutdown(wait=False)
        if self._service.tracing is not None:
            await asyncio.to_thread(self._service.tracing.close)
        log("ended")

    def _engine_ended(self, error: BaseException | None) -> None:
        if error is None:
            self._ended.set_result(None)
            return
        self._readiness.failure = str(error) or type(error).__name__
        self._metrics.set_ready(False)
        self._service.fail(QpackError("the engine has stopped after an error"))
        if isinstance(error, (QpackError, ModuleNotFoundError)):  # the command has words for both
            self._ended.set_exception(error)
            return
        log("engine_failed", level=logging.ERROR, error=error)
        self._ended.set_exception(QpackError(f"the engine failed: {type(error).__name__}: {error}"))

    def _config(self) -> uvicorn.Config:
        options = self._options
        app = make_app(
            self._service,
            self._keys,
            only_loopback_names=options.loopback and self._keys is None,
            log_prompts=options.log_prompts,
        )
        config = uvicorn.Config(
            app, http=Connection, ws="none", lifespan="off", loop="asyncio", log_config=None, access_log=False,
            server_header=False, proxy_headers=False, timeout_graceful_shutdown=FLUSH_SECONDS,
        )  # fmt: skip
        config.load()
        config.ssl = self._tls
        return config


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self):
        """Signals are the process's, which drains first."""
        yield
