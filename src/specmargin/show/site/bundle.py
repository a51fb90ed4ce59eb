"""Pages that need few requests: modules in one file, styles and small scripts inside the page, and a policy for them.

Not a general bundler: it reads the forms of `import` and `export` that the page's own modules use, and refuses others.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Callable, Iterator, Sequence

Read = Callable[[str], str]  # the text of a static file
_IMPORT = re.compile(r'^import (?:\* as (\w+)|\{([^}]*)\}) from "\./([\w-]+)\.js";.*$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async function|function|class|const) (\w+)\b)", re.MULTILINE)
_LEFT = re.compile(r"^(?:import|export)\b(?!\().*$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*//.*\n", re.MULTILINE)
_STYLE = re.compile(r'<link rel="stylesheet" href="static/([\w.-]+)">\n?')
_CLASSIC = re.compile(r'<script src="static/([\w.-]+)"></script>')
_MODULE = re.compile(r'<script type="module" src="static/([\w-]+)\.js"></script>\n?')
_INLINE = re.compile(r"<(script|style)([^>]*)>(.*?)</\1>", re.DOTALL)
_HEAD = '<meta charset="utf-8">\n'


def bundle(entry: str, read: Read) -> str:
    """The module `entry` and all that it imports, as one module. `modules` exports them by name."""
    ordered: dict[str, str] = {}
    _collect(entry, read, ordered, ())
    names = ", ".join(f"{_key(name)}: {_variable(name)}" for name in ordered)
    return "\n".join([*ordered.values(), f"export const modules = {{ {names} }};", ""])


def _key(name: str) -> str:
    return f'"{name}"' if "-" in name else name


def _collect(name: str, read: Read, ordered: dict[str, str], above: tuple[str, ...]) -> None:
    if name in ordered:
        return
    if name in above:
        raise ValueError(f"{name}.js imports itself, by way of {', '.join(above)}")
    text = _COMMENT.sub("", read(f"{name}.js"))
    for _, _, other in _IMPORT.findall(text):
        _collect(other, read, ordered, (*above, name))
    ordered[name] = _scoped(name, text)


def _scoped(name: str, text: str) -> str:
    """In a function of its own, which returns what the module exports."""
    exported = _EXPORT.findall(text)
    body = _EXPORT.sub("", _IMPORT.sub(_bound, text))
    if left := _LEFT.search(body):
        raise ValueError(f"{name}.js: cannot bundle {left.group()!r}")
    return f"const {_variable(name)} = (() => {{\n{body.strip()}\nreturn {{ {', '.join(exported)} }};\n}})();"


def _bound(match: re.Match[str]) -> str:
    whole, names, module = match.groups()
    if whole:
        return f"const {whole} = {_variable(module)};"
    return f"const {{ {names.strip().replace(' as ', ': ')} }} = {_variable(module)};"


def _variable(name: str) -> str:
    return f"${name.replace('-', '_')}"


# --- pages ---


def modules_of(page: str) -> list[str]:
    return _MODULE.findall(page)


def without_modules(page: str, names: Sequence[str]) -> str:
    return _MODULE.sub(lambda match: "" if match[1] in names else match[0], page)


def inlined(page: str, read: Read) -> str:
    """The page with its styles and its scripts that are no modules inside, and the policy that allows just these."""
    page = _STYLE.sub(lambda match: f"<style>{_styles(read(match[1]))}</style>", page).replace("</style><style>", "\n")
    page = _CLASSIC.sub(lambda match: f"<script>{_COMMENT.sub('', read(match[1]))}</script>", page)
    policy = html.escape(policy_of(page), quote=False)
    return page.replace(_HEAD, f'{_HEAD}<meta http-equiv="Content-Security-Policy" content="{policy}">\n', 1)


def _styles(text: str) -> str:
    return re.sub(r"/\*.*?\*/\s*", "", text, flags=re.DOTALL)


def policy_of(page: str) -> str:
    """Own files, and scripts and styles of the page by their hashes; who may frame it is the web host's to say."""
    scripts, styles = (" ".join(["'self'", *_hashes(page, tag)]) for tag in ("script", "style"))
    return (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'self'; form-action 'none'"
    )


def _hashes(page: str, tag: str) -> Iterator[str]:
    for found, attributes, text in _INLINE.findall(page):
        if found == tag and text and "application/json" not in attributes:
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            yield f"'sha256-{digest}'"
