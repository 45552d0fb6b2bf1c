"""`ocr-gateway ocr`: from its options to results and a summary."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gateway.errors import ConfigError
from gateway.tools.ocr import input_files
from gateway.tools.ocr.document_result import SUFFIXES
from gateway.tools.ocr.ocr_client import AllFailed, DocumentFailed, DocumentUpload, OcrClient
from gateway.tools.ocr.ocr_options import KEY_VARIABLE
from gateway.tools.ocr.ocr_progress import DocumentTally, ProgressBar
from gateway.tools.output import counted, nobody_reads, printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from gateway.tools.ocr.document_result import DocumentResult
    from gateway.tools.ocr.input_files import InputDocument, Target

_INTERRUPTED = 130


def run(options: argparse.Namespace) -> int:
    """Read the documents; return the exit status.

    0: everything was read. 1: something could not be. 130: interrupted.

    Raises:
        ConfigError: options, files or folders that cannot be used.
    """
    kind = options.format or ("json" if options.schema else "markdown")
    if options.schema and kind != "json":
        raise ConfigError(["--schema: the values are in the server's answer, which is --format json"])
    documents = input_files.find(options.paths, recursive=options.recursive)
    if len(documents) > 1 and options.out is None:
        raise ConfigError([f"--out: {len(documents)} documents need a folder for their results"])
    targets: Sequence[Target | None] = [None] * len(documents)
    if options.out:
        targets = input_files.targets(documents, options.out, SUFFIXES[kind])
    schema = _schema(options.schema) if options.schema else None
    request = DocumentUpload(options.route, options.pages, schema)
    client = OcrClient(options.url, _key(options.key), request, random.Random())
    job = _ReadingJob(client, kind, DocumentTally(len(documents)))
    for document, target in zip(documents, targets, strict=True):
        if target and target.is_done(document):
            job.tally.skip(_name(document))
        else:
            job.due.append((document, target))
    return _run(job, options.concurrency, options.out)


@dataclass(frozen=True, slots=True)
class _ReadingJob:
    """Documents to read.

    Attributes:
        client: sends them.
        kind: the results' form.
        tally: what has become of them.
        due: each with the place of its result; None: standard output.
        printed: what is for standard output.
    """

    client: OcrClient
    kind: str
    tally: DocumentTally
    due: list[tuple[InputDocument, Target | None]] = field(default_factory=list)
    printed: list[bytes] = field(default_factory=list)

    async def read_all(self, at_once: int, bar: ProgressBar) -> str:
        """Read what is due; return what stopped it, empty where nothing did."""
        reason = ""
        try:
            async with self.client, asyncio.TaskGroup() as group:
                due = iter(self.due)
                for _ in range(min(at_once, len(self.due))):
                    group.create_task(self._read_on(due, bar))
        except* AllFailed as stopped:
            reason = str(stopped.exceptions[0])
        return reason

    async def _read_on(self, due: Iterator[tuple[InputDocument, Target | None]], bar: ProgressBar) -> None:
        """Read one document after the other."""
        for document, target in due:
            name = _name(document)

            def progress(result: DocumentResult, name: str = name) -> None:
                self.tally.under_way[name] = result
                bar.update()

            try:
                result = await self.client.read(document.path, progress)
            except DocumentFailed as failed:
                self.tally.fail(name, str(failed))
                bar.line(f"{name}: {failed}")
                continue
            failures = result.failures()
            data = result.rendered(self.kind)
            if target is None:
                self.printed.append(data)
            else:
                _write(target, data, whole=not failures)
            self.tally.finish(name, result)
            broken = f", {len(failures)} failed" if failures else ""
            bar.line(f"{name}: {counted(len(result.pages), 'page')}{broken}")


def _run(job: _ReadingJob, at_once: int, out: Path | None) -> int:
    tally, clock = job.tally, time.monotonic
    started = clock()
    stopped = ""
    try:
        with ProgressBar(sys.stderr, tally, clock) as bar:
            if job.due:
                stopped = asyncio.run(job.read_all(at_once, bar))
        for data in job.printed:
            sys.stdout.buffer.write(data)
        sys.stdout.flush()
    except KeyboardInterrupt:
        _tell([*tally.summary(clock() - started), _after_interrupt(tally, out)])
        return _INTERRUPTED
    except BrokenPipeError:  # `| head`
        nobody_reads(sys.stdout)
    if stopped and not tally.done:
        _tell([stopped])
        return 1
    _tell(tally.summary(clock() - started))
    if stopped:
        left = tally.documents - tally.done
        _tell([f"stopped: {stopped}", f"{left} not read; the same command goes on from there"])
    return int(bool(stopped or tally.failed))


def _write(target: Target, data: bytes, *, whole: bool) -> None:
    try:
        target.write(data, whole=whole)
    except OSError as error:
        raise AllFailed(f"{error.filename or target.whole}: {error.strerror or error}") from error


def _name(document: InputDocument) -> str:
    return printable(str(document.name))


def _key(variable: str | None) -> str:
    key = os.environ.get(variable or KEY_VARIABLE, "").strip()
    if variable and not key:
        raise ConfigError(
            [f"--key: the environment variable {variable} is not set; it is to hold the API key"]
        )
    if not (key.isascii() and (key == "" or key.isprintable())):
        raise ConfigError([f"--key: {variable or KEY_VARIABLE} must be printable ASCII"])
    return key


def _schema(path: Path) -> dict[str, Any]:
    try:
        schema = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror}"]) from error
    except ValueError as error:
        raise ConfigError([f"{path}: not JSON: {error}"]) from error
    if not isinstance(schema, dict):
        raise ConfigError(
            [f'{path}: a JSON Schema is an object such as {{"type": "object", "properties": ...}}']
        )
    return schema


def _after_interrupt(tally: DocumentTally, out: Path | None) -> str:
    if out is None:
        return "interrupted: nothing was written"
    there = len(tally.read) + len(tally.skipped)
    return (
        f"interrupted: {there} of {tally.documents} results are whole in {out}; "
        "the same command goes on from there"
    )


def _tell(lines: Iterable[str]) -> None:
    print(*lines, sep="\n", file=sys.stderr, flush=True)
