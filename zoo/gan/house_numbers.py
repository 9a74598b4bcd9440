"""Generator of 3x32x32 house numbers: coloured digits on walls, with neighbours, clutter, blur.

Substitute for SVHN's cropped digits (Netzer et al. 2011), which no package offers; the middle digit
counts. They are far more regular than photographs, so accuracies do not carry over. For the
training script; needs pillow and the Debian packages fonts-dejavu and fonts-liberation.
"""

from __future__ import annotations

import pathlib

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

FONTS = pathlib.Path("/usr/share/fonts/truetype")
FAMILIES = ("dejavu", "liberation")
SIDE = 32
SCALE = 2
"""Oversampling, which smooths edges."""
LEAST_CONTRAST = 60
"""Brightness levels between digit and wall."""
_BRIGHTNESS = np.array([0.299, 0.587, 0.114])


def fonts() -> list[pathlib.Path]:
    """Return the font files, sorted.

    Raises:
        FileNotFoundError: there are none.
    """
    found = [path for family in FAMILIES for path in sorted((FONTS / family).glob("*.ttf"))]
    found = [path for path in found if "Math" not in path.name]
    if not found:
        raise FileNotFoundError(
            f"no fonts in {FONTS}; install the Debian packages fonts-dejavu and fonts-liberation"
        )
    return found


def draw(count: int, rng: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Draw house numbers.

    Returns:
        Images (count, 3, 32, 32), digits (count,).
    """
    files = fonts()
    digits = rng.integers(0, 10, count)
    images = np.stack([_one(int(digit), files, rng) for digit in digits])
    return images, digits


def _one(digit: int, files: list[pathlib.Path], rng: np.random.Generator) -> NDArray[np.uint8]:
    wall, ink = _colours(rng)
    side = SIDE * SCALE
    picture = Image.new("RGB", (side, side), wall)
    pen = ImageDraw.Draw(picture)
    _clutter(pen, side, wall, rng)
    font = ImageFont.truetype(str(files[rng.integers(len(files))]), size=int(rng.integers(40, 62)))
    number = Image.new("L", (2 * side, 2 * side))
    letters = ImageDraw.Draw(number)
    width = letters.textlength(str(digit), font=font)
    neighbours = [str(rng.integers(10)) if rng.random() < 0.6 else "" for _ in range(2)]
    shift = rng.uniform(-5, 5, 2)
    for text, anchor, place in (
        (neighbours[0], "rm", -width / 2),
        (str(digit), "mm", 0.0),
        (neighbours[1], "lm", width / 2),
    ):
        at = (side + shift[0] + place, side + shift[1])
        letters.text(at, text, fill=255, font=font, anchor=anchor)
    number = number.rotate(float(rng.uniform(-12, 12)), Image.Resampling.BILINEAR)
    number = number.crop((side // 2, side // 2, side // 2 + side, side // 2 + side))
    if rng.random() < 0.3:  # shadow
        picture.paste(_shaded(wall, -50), (2, 2), number)
    picture.paste(ink, (0, 0), number)
    picture = picture.filter(ImageFilter.GaussianBlur(float(rng.uniform(0, 2.5))))
    picture = picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    light = np.linspace(*rng.uniform(-25, 25, 2), SIDE)
    noise = rng.normal(0, rng.uniform(1, 10), (SIDE, SIDE, 3))
    pixels = np.asarray(picture, np.float64) + light[:, np.newaxis] + noise
    return pixels.clip(0, 255).astype(np.uint8).transpose(2, 0, 1)


def _colours(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draw distinguishable colours of wall and ink."""
    while True:
        wall, ink = rng.integers(20, 236, (2, 3))
        if abs(float((wall - ink) @ _BRIGHTNESS)) >= LEAST_CONTRAST:
            return tuple(map(int, wall)), tuple(map(int, ink))


def _clutter(
    pen: ImageDraw.ImageDraw, side: int, wall: tuple[int, ...], rng: np.random.Generator
) -> None:
    """Draw frames, edges and stains."""
    for _ in range(rng.integers(0, 4)):
        (left, top), (width, height) = rng.integers(-10, side, 2), rng.integers(4, side, 2)
        box = (int(left), int(top), int(left + width), int(top + height))
        shade = _shaded(wall, int(rng.integers(-35, 36)))
        if rng.random() < 0.5:
            pen.rectangle(box, fill=shade)
        else:
            pen.line(box, fill=shade, width=int(rng.integers(1, 5)))


def _shaded(colour: tuple[int, ...], levels: int) -> tuple[int, ...]:
    return tuple(min(255, max(0, part + levels)) for part in colour)
