"""Turn real functions into chat samples: the opening of a function asked for, the rest of it answered.

The answer stands in a code fence, so that it never begins with white space: `assistant\\n` and an
indentation would otherwise merge into one token when a whole conversation is tokenised at once.
"""

from __future__ import annotations

import ast
import hashlib
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from scripts.demo_target.corpus import functions_of

PHRASINGS = (
    "Complete this function:\n{code}",
    "Finish the Python function below.\n\n{code}",
    "Write the rest of this function.\n{code}",
    "{code}\nContinue this code.",
    "Implement `{name}`:\n{code}",
    "Fill in the body of `{name}`.\n\n{code}",
    "Here is the start of a function. Please complete it.\n{code}",
    "How would you finish this?\n{code}",
)


@dataclass(frozen=True)
class Sample:
    """One exchange; `key` is equal for answers that differ in white space alone."""

    prompt: str
    answer: str
    key: str


def samples_of(text: str) -> Iterator[Sample]:
    """One sample for every function of a module that is long enough to be cut in two."""
    lines = text.split("\n")
    for node in functions_of(text):
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        function = textwrap.dedent("\n".join(lines[first - 1 : node.end_lineno]))
        cut = _cut(function)
        if cut is None:
            continue
        opening, rest = cut
        key = hashlib.sha256("".join(rest.split()).encode()).hexdigest()[:16]
        phrasing = PHRASINGS[int(key, 16) % len(PHRASINGS)]
        prompt = phrasing.format(code=f"```python\n{opening}\n```", name=node.name)
        yield Sample(prompt, f"```python\n{rest}\n```", key)


def answer_is_python(prompt: str, answer: str) -> bool:
    """Whether the code of the prompt and the fenced code of the answer make one module that parses."""
    if not answer.startswith("```python\n") or not answer.endswith("\n```") or answer.count("```") != 2:
        return False
    opening = prompt.split("```python\n", 1)[-1].rsplit("\n```", 1)[0]
    try:
        ast.parse(opening + answer.removeprefix("```python").removesuffix("```"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _cut(function: str) -> tuple[str, str] | None:
    """Signature and first docstring line (or first statement) apart from the remaining lines."""
    try:
        node = ast.parse(function).body[0]
    except (SyntaxError, IndexError):
        return None
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or len(node.body) < 3:
        return None
    if "```" in function or "<|" in function or node.body[0].lineno == node.lineno:
        return None
    lines = function.split("\n")
    docstring = ast.get_docstring(node)
    signature = lines[: node.body[0].lineno - 1]
    rest = lines[(node.body[0].end_lineno or 0) :]
    indent = " " * node.body[0].col_offset
    if docstring:
        summary = docstring.split("\n")[0].strip().replace('"""', "'''").replace("\\", "/")
        shown = [*signature, f'{indent}"""{summary}"""']
    else:
        shown = lines[: node.body[0].end_lineno]
    while rest and not rest[0].strip():
        rest.pop(0)
    if not rest or not "".join(shown).strip():
        return None
    return "\n".join(shown), "\n".join(rest)
