// Cividis (Nuñez et al. 2018), a colour map that is safe for colour-blind readers, at 0, 1/8, ..., 1.
const CIVIDIS = [
  [0, 34, 78],
  [18, 53, 112],
  [59, 73, 108],
  [87, 93, 109],
  [112, 113, 115],
  [138, 134, 120],
  [165, 156, 116],
  [195, 179, 105],
  [254, 232, 56],
];

// Attention weight to brightness, both 0..1; not normalised, so that steps and heads compare.
export const SCALES = {
  "square root": Math.sqrt,
  linear: (weight) => weight,
  log: (weight) => Math.max(0, 1 + Math.log10(weight) / 4), // 0 is a weight of 1e-4
};

export function colour(brightness) {
  const position = Math.min(1, Math.max(0, brightness)) * (CIVIDIS.length - 1);
  const index = Math.min(Math.floor(position), CIVIDIS.length - 2);
  const fraction = position - index;
  return CIVIDIS[index].map((low, channel) => Math.round(low + fraction * (CIVIDIS[index + 1][channel] - low)));
}

// Colour of a difference, -1..1: blue, the background, orange.
export function differenceColour(difference, dark) {
  const end = difference < 0 ? [37, 99, 235] : [234, 88, 12];
  const strength = Math.min(1, Math.abs(difference));
  return end.map((channel) => Math.round(channel * strength + (dark ? 48 : 255) * (1 - strength)));
}

export function css([red, green, blue]) {
  return `rgb(${red}, ${green}, ${blue})`;
}

// Text colour that is readable on a background.
export function textColourOn([red, green, blue]) {
  return 0.299 * red + 0.587 * green + 0.114 * blue > 120 ? "#000" : "#fff";
}

// A packed map as an image of T x T pixels.
export function imageOf(map, size, scale, dark) {
  const palette = paletteOf(scale);
  return lowerTriangle(size, dark, (index) => palette[map[index]]);
}

// The second packed map minus the first, as an image.
export function differenceImage(first, second, size, scale, dark) {
  const shade = (index) => {
    const difference = (second[index] ** 2 - first[index] ** 2) / 255 ** 2;
    return toPixel(differenceColour(Math.sign(difference) * Math.max(0, SCALES[scale](Math.abs(difference))), dark));
  };
  return lowerTriangle(size, dark, shade);
}

// Pixels of a lower triangle, row by row; masked future keys are grey.
function lowerTriangle(size, dark, pixelAt) {
  const image = new ImageData(size, size);
  const pixels = new Uint32Array(image.data.buffer).fill(toPixel(dark ? [64, 64, 64] : [208, 208, 208]));
  let index = 0;
  for (let query = 0; query < size; query++) {
    for (let key = 0; key <= query; key++) pixels[query * size + key] = pixelAt(index++);
  }
  return image;
}

const palettes = {};

// The pixel of each byte of a packed map.
function paletteOf(scale) {
  palettes[scale] ??= Uint32Array.from({ length: 256 }, (_, byte) => toPixel(colour(SCALES[scale]((byte / 255) ** 2))));
  return palettes[scale];
}

// A pixel as a 32-bit integer in the machine's byte order.
function toPixel([red, green, blue]) {
  return new Uint32Array(new Uint8Array([red, green, blue, 255]).buffer)[0];
}
