"""Modules in one file: imports by name and as a whole, in the order of their use; other forms are refused."""

from __future__ import annotations

import base64
import hashlib

import pytest

from specmargin.show.site.bundle import bundle, inlined, modules_of, without_modules

FILES = {
    "app.js": 'import * as one from "./one.js";\nimport { two as second } from "./two.js"; // why\none.first(second);',
    "one.js": 'import { two } from "./two.js";\nexport function first(x) { return x + two; }\n',
    "two.js": "// a comment\nexport const two = 2;\nexport class Other {}\n",
}


def test_modules_come_before_those_that_import_them() -> None:
    assert bundle("app", FILES.__getitem__) == (
        "const $two = (() => {\nconst two = 2;\nclass Other {}\nreturn { two, Other };\n})();\n"
        "const $one = (() => {\nconst { two } = $two;\nfunction first(x) { return x + two; }\nreturn { first };\n"
        "})();\n"
        "const $app = (() => {\nconst one = $one;\nconst { two: second } = $two;\none.first(second);\nreturn {  };\n"
        "})();\n"
        "export const modules = { two: $two, one: $one, app: $app };\n"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("export default 3;\n", "export default"),
        ("export let count = 0;\n", "export let"),
        ('import "./two.js";\n', 'import "./two.js"'),
        ('import { app } from "./app.js";\n', "imports itself"),
    ],
)
def test_other_forms_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        bundle("app", {**FILES, "app.js": text}.__getitem__)


def test_a_page_has_its_styles_and_a_policy_for_them() -> None:
    page = (
        '<head>\n<meta charset="utf-8">\n<link rel="stylesheet" href="static/a.css">\n'
        '<script src="static/t.js"></script>\n'
        '<script type="module" src="static/app.js"></script>\n<script type="module" src="static/story.js"></script>\n'
        '<script type="application/json">{}</script></head>'
    )
    assert modules_of(page) == ["app", "story"]
    whole = inlined(without_modules(page, ("story",)), {"a.css": "p { top: 0 }", "t.js": "go();"}.__getitem__)
    assert "<style>p { top: 0 }</style><script>go();</script>" in whole and "story.js" not in whole
    hashes = [base64.b64encode(hashlib.sha256(text).digest()).decode() for text in (b"go();", b"p { top: 0 }")]
    assert f"script-src 'self' 'sha256-{hashes[0]}'; style-src 'self' 'sha256-{hashes[1]}';" in whole
