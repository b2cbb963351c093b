"""How tokens are shown in a terminal."""

from __future__ import annotations

from forerun.core import Origin

STYLES = {
    Origin.ACCEPTED: "green",
    Origin.RECOVERED: "yellow",
    Origin.BONUS: "cyan",
    Origin.PLAIN: "default",
}
# A model may emit escape sequences; in a terminal they are shown, not obeyed.
VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}
