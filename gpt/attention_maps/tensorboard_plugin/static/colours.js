// Cividis (Nuñez et al. 2018), which is readable without colour vision, at 0, 1/8, ..., 1; the pictures have the same.
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

// A weight, 0..1, to brightness, 0..1; the same for all steps and heads, so that they compare.
export const SCALES = {
  "square root": Math.sqrt,
  linear: (weight) => weight,
  log: (weight) => Math.max(0, 1 + Math.log10(weight) / 4), // black is a ten-thousandth
};

export function colour(brightness) {
  const position = Math.min(1, Math.max(0, brightness)) * (CIVIDIS.length - 1);
  const below = Math.min(Math.floor(position), CIVIDIS.length - 2);
  const part = position - below;
  return CIVIDIS[below].map((channel, index) => Math.round(channel + part * (CIVIDIS[below + 1][index] - channel)));
}

export function css([red, green, blue]) {
  return `rgb(${red}, ${green}, ${blue})`;
}

// Ink that can be read on a colour.
export function inkOn([red, green, blue]) {
  return 0.299 * red + 0.587 * green + 0.114 * blue > 120 ? "#000" : "#fff";
}

// A packed map as an image of T x T pixels; the future, which no token sees, is flat grey.
export function imageOf(map, size, scale, dark) {
  const palette = paletteOf(scale);
  const image = new ImageData(size, size);
  const pixels = new Uint32Array(image.data.buffer).fill(packed(dark ? [64, 64, 64] : [208, 208, 208]));
  let index = 0;
  for (let query = 0; query < size; query++) {
    for (let key = 0; key <= query; key++) pixels[query * size + key] = palette[map[index++]];
  }
  return image;
}

const palettes = {};

// The pixel of each packed weight.
function paletteOf(scale) {
  palettes[scale] ??= Uint32Array.from({ length: 256 }, (_, byte) => packed(colour(SCALES[scale]((byte / 255) ** 2))));
  return palettes[scale];
}

// A pixel as ImageData holds it, on any machine's order of bytes.
function packed([red, green, blue]) {
  return new Uint32Array(new Uint8Array([red, green, blue, 255]).buffer)[0];
}
