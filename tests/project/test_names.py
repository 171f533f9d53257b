"""Names and words of the code: one meaning for each class name, and plain English."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "src" / "warpseal"
TREES: Final = (SOURCE, ROOT / "src" / "warpseal_simnet", ROOT / "tests", ROOT / "benchmarks")
# Class names that exist twice, with the reason.
SHARED_NAMES: Final = {
    "Compressor": "one interface, two zstd backends",
    "Decompressor": "one interface, two zstd backends",
    "ExportTx": "avalanchego's name; a transaction's kind is the name of its class",
    "ImportTx": "avalanchego's name; a transaction's kind is the name of its class",
    "SignedMessage": (
        "the message itself, and the OpenAPI schema of a reply, which is named after its class"
    ),
}
WORDS: Final = re.compile(r"\b(told|whoever|nobody|somebody|anew)\b", re.IGNORECASE)
WORD_IN_NAME: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
LOOP_VARIABLES: Final = {"one", "each"}
# Participles that name no variable, parameter or field: a noun says what it holds.
PARTICIPLES: Final = {
    *(
        "found",
        "known",
        "wanted",
        "given",
        "named",
        "shown",
        "lacking",
        "told",
        "asked",
        "made",
        "got",
        "begun",
    ),
    *("drawn", "printed", "handed", "granted", "judged", "blamed", "heard", "learnt", "finished"),
}
# The same in tests, benchmarks and the simulated network.
PARTICIPLES_OF_TESTS: Final = PARTICIPLES | {
    "taken",
    "sent",
    "received",
    "written",
    "answered",
    "posted",
    "said",
}
# Parts of names: the words are error, refusal, failure, reply (RPC) and response (HTTP, peer
# protocol).
REPLACED_WORDS: Final = {"answer", "answers", "fault", "faults", "faulty"}
REPLACED_WORDS_OF_TESTS: Final = REPLACED_WORDS | {"world", "scene"}
# Names of single files that have such a word, with the reason.
ALLOWED_NAMES: Final = {
    ("api/status/document.py", "faults"): "a field of the status document",
    ("api/status/probe_bodies.py", "faults"): "a field of the response to /ready",
    (
        "messages/verification.py",
        "fault",
    ): "a field of the verification report, and of the result of warpseal.verify",
    ("delivery/preflight.py", "PreflightAnswer"): "a schema of the OpenAPI document",
    ("upstream/errors.py", "AnswerClass"): "a schema of the OpenAPI document",
    ("upstream/errors.py", "BAD_ANSWER"): "the value bad_answer, which responses have",
    ("follow/blocks.py", "ANSWER_TOO_LARGE"): "the value answer_too_large, which the status has",
    (
        "forwarding/settings.py",
        "max_answer_bytes",
    ): "the limit of one name in three groups of settings",
    ("node/settings.py", "max_answer_bytes"): "as in forwarding/settings.py",
    ("prices/settings.py", "max_answer_bytes"): "as in forwarding/settings.py",
}
# Lines that may have a forbidden word, with the reason.
ALLOWED_LINES: Final = {'return pwd.getpwnam("nobody")': "the system user"}

# The formatter writes each class so; to parse all files takes two seconds.
CLASS: Final = re.compile(r"^ *class ([A-Za-z]\w*)[(:]", re.MULTILINE)
Loop = ast.For | ast.AsyncFor | ast.comprehension


def python_files() -> list[Path]:
    """Return the code of the project, without generated modules and recorded vectors."""
    files = [file for tree in TREES for file in tree.rglob("*.py")]
    own = Path(__file__)
    return sorted(
        file
        for file in files
        if not {"pb", "vectors"} & set(file.relative_to(ROOT).parts) and file != own
    )


FILES: Final = python_files()


def test_no_public_class_name_exists_twice() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for file in FILES:
        if not file.is_relative_to(SOURCE):
            continue
        for name in CLASS.findall(file.read_text()):
            homes[name].append(str(file.relative_to(SOURCE)))
    shared = {name: files for name, files in homes.items() if len(files) > 1}
    assert {name: files for name, files in shared.items() if name not in SHARED_NAMES} == {}
    assert shared.keys() == SHARED_NAMES.keys()


def test_words_and_variables_are_plain() -> None:
    """One test for all files: a test for each takes longer to collect and to begin than to run."""
    words = {str(file.relative_to(ROOT)): list(_unplain_words(file)) for file in FILES}
    assert {file: names for file, names in words.items() if names} == {}


def _unplain_words(file: Path) -> Iterator[str]:
    """Yield the lines and names of a file that have a word which is not plain."""
    text = file.read_text()
    for line in text.splitlines():
        if WORDS.search(line) and line.strip() not in ALLOWED_LINES:
            yield line.strip()
    nodes = list(ast.walk(ast.parse(text)))
    loops = [node for node in nodes if isinstance(node, Loop)]
    targets = {
        name.id for loop in loops for name in ast.walk(loop.target) if isinstance(name, ast.Name)
    }
    yield from targets & LOOP_VARIABLES
    variables = {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    fields = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
    nouns = {name.strip("_") for name in variables | fields | parameters}
    is_product = file.is_relative_to(SOURCE)
    yield from nouns & (PARTICIPLES if is_product else PARTICIPLES_OF_TESTS)
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    functions = {
        node.name
        for node in nodes
        if isinstance(node, definitions) and not node.name.startswith("test_")
    }
    path = str(file.relative_to(SOURCE)) if is_product else ""
    names = {name for name in nouns | functions | {file.stem} if (path, name) not in ALLOWED_NAMES}
    words = {word.lower() for name in names for word in WORD_IN_NAME.findall(name)}
    yield from words & (REPLACED_WORDS if is_product else REPLACED_WORDS_OF_TESTS)
