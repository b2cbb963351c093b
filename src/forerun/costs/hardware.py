"""Published limits of hardware.

Peaks are for dense matrices; makers also print twice as much for matrices with half of their entries zero.
Programs reach less: some 60 to 90 % of the bandwidth and 40 to 80 % of the peak.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from forerun.costs.precision import PRECISIONS
from forerun.errors import ConfigError, UnknownNameError
from forerun.options import Text, options

GB = 1e9
TFLOPS = 1e12
_Limit = Annotated[float, Field(gt=0.0, lt=math.inf)]


@options
class Hardware:
    """Published limits of one device.

    Raises:
        ConfigError: for a limit that is not a finite number above zero.
    """

    name: Text = Field(description="As people call it.")
    bandwidth: _Limit = Field(description="Of its memory, in bytes a second.")
    fp16: _Limit = Field(
        description="Peak of 16-bit matrix products, sums in 32 bits, in FLOP a second."
    )
    fp32: _Limit | None = Field(
        default=None, description="The same of fp32; None where it is not published."
    )
    fp8: _Limit | None = Field(default=None, description="The same of fp8.")
    capacity: _Limit | None = Field(
        default=None, description="Of its memory, in bytes; None where it is not known."
    )

    def peak(self, precision: str) -> float:
        """Peak FLOP per second with numbers of a format, one of `PRECISIONS`.

        Raises:
            ConfigError: if no such peak is published.
            UnknownNameError: for an unknown format.
        """
        if precision not in PRECISIONS:
            raise UnknownNameError("precision", precision, PRECISIONS)
        peaks = {"fp32": self.fp32, "fp16": self.fp16, "fp8": self.fp8}
        peak = peaks[PRECISIONS[precision].computed_in]
        if peak is None:
            known = [name for name, kind in PRECISIONS.items() if peaks[kind.computed_in]]
            raise ConfigError(
                f"{self.name} has no published peak for {precision}; use one of {', '.join(known)}."
            )
        return peak


def find_hardware(name: str) -> Hardware:
    """The device with a name.

    Raises:
        UnknownNameError: for an unknown name; lists the known ones.
    """
    key = name.strip().lower()
    if key not in HARDWARE:
        raise UnknownNameError("hardware", name.strip(), HARDWARE)
    return HARDWARE[key]


def _device(
    name: str,
    bandwidth: float,
    fp16: float,
    *,
    fp32: float | None = None,
    fp8: float | None = None,
    capacity: float,
) -> Hardware:
    """Make a device from figures in the units of data sheets: GB/s, TFLOP/s, GB."""
    peaks = {"fp32": fp32 and fp32 * TFLOPS, "fp8": fp8 and fp8 * TFLOPS}
    return Hardware(name, bandwidth * GB, fp16 * TFLOPS, **peaks, capacity=capacity * GB)


HARDWARE = {
    device.name: device
    for device in (
        # NVIDIA A100 80GB data sheet (SXM; PCIe reads at 1935 GB/s).
        _device("a100", 2039, 312, fp32=19.5, capacity=80),
        # NVIDIA H100 data sheet, SXM, which prints 1979 and 3958, with sparsity.
        _device("h100", 3350, 989.4, fp32=67, fp8=1978.9, capacity=80),
        # NVIDIA H200 data sheet, SXM; its arithmetic is that of an H100.
        _device("h200", 4800, 989.4, fp32=67, fp8=1978.9, capacity=141),
        # NVIDIA HGX B200 at 1000 W, one of eight: Blackwell architecture technical brief.
        _device("b200", 8000, 2250, fp32=80, fp8=4500, capacity=180),
        # AMD Instinct MI300X data sheet.
        _device("mi300x", 5300, 1307.4, fp32=163.4, fp8=2614.9, capacity=192),
        # NVIDIA L4 and L40S data sheets; half of the figures printed with sparsity.
        _device("l4", 300, 121, fp32=30.3, fp8=242.5, capacity=24),
        _device("l40s", 864, 362, fp32=91.6, fp8=733, capacity=48),
        # NVIDIA Ada GPU architecture, appendix A; sums in 32 bits.
        _device("rtx-4090", 1008, 165.2, fp32=82.6, fp8=330.3, capacity=24),
        # NVIDIA Ampere GA102 GPU architecture, table 9; sums in 32 bits.
        _device("rtx-3090", 936, 71, fp32=35.6, capacity=24),
        # Apple, press releases of 18 October 2021 and 8 March 2022, the largest memory; one peak is
        # published, for all formats.
        _device("m1-max", 400, 10.4, fp32=10.4, capacity=64),
        _device("m1-ultra", 800, 21, fp32=21, capacity=128),
        # Assumed: cores of 2.5 GHz with two AVX-512 units (64 fp32 FLOP a cycle) that turn 16-bit
        # weights into fp32, 10 GB/s a core and 8 GB a core: a small virtual machine.
        _device("cpu-2-core", 20, 0.32, fp32=0.32, capacity=16),
        # Assumed: the same cores at 2.0 GHz; eight channels of DDR5-5600 read 358.4 GB/s.
        _device("cpu-64-core", 358.4, 8.192, fp32=8.192, capacity=512),
    )
}
