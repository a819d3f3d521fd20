"""The looks of a page, light, dark and on a phone, and what keeps people from using it in each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tests.support.browser import Visit

PHONE: Final = {"width": 390, "height": 844}
LOOKS: Final[dict[str, dict[str, Any]]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"color_scheme": "dark", "viewport": PHONE, "has_touch": True, "is_mobile": True},
}
"""Of the contexts of a browser."""

ASK_AXE: Final = """async () => (await axe.run(document, {
    preload: false, resultTypes: ["violations"], runOnly: ["wcag2a", "wcag2aa", "wcag21aa", "best-practice"],
})).violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(" ")}`)"""
IS_TOO_WIDE: Final = "document.documentElement.scrollWidth > innerWidth"
AS_A_PHONE: Final = "innerWidth === 390 && matchMedia('(pointer: coarse)').matches"


class LooksOfPage:
    """One page that changes its look while it is open: to load it for each look would take most of the time."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._protocol = visit.page.context.new_cdp_session(visit.page)

    def each(self) -> Iterator[str]:
        """Yield each look while the page has it; after them it is as it was."""
        page = self._visit.page
        for look, options in LOOKS.items():
            page.emulate_media(color_scheme=options["color_scheme"])
            self._be_phone(look == "phone")
            yield look
        self._be_phone(False)

    def faults(self, path: str) -> dict[str, Any]:
        """What is wrong with the page that is open, by path and look."""
        found = {(path, look): self._fault() for look in self.each()}
        return {f"{path} {look}": fault for (path, look), fault in found.items() if fault}

    def _fault(self) -> list[str]:
        wide = ["it scrolls sideways"] if self._visit.evaluate(IS_TOO_WIDE) else []
        return [*wide, *self._visit.evaluate(ASK_AXE)]

    def _be_phone(self, is_phone: bool) -> None:
        send = self._protocol.send
        if is_phone:
            send("Emulation.setDeviceMetricsOverride", {**PHONE, "deviceScaleFactor": 1, "mobile": True})
        else:
            send("Emulation.clearDeviceMetricsOverride")
        send("Emulation.setTouchEmulationEnabled", {"enabled": is_phone})
        assert self._visit.evaluate(AS_A_PHONE) is is_phone
