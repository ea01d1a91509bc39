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
  const palette = Array.from({ length: 256 }, (_, byte) => colour(SCALES[scale]((byte / 255) ** 2)));
  const future = dark ? 64 : 208;
  const image = new ImageData(size, size);
  image.data.fill(future);
  let index = 0;
  for (let query = 0; query < size; query++) {
    for (let key = 0; key < size; key++) {
      const pixel = 4 * (query * size + key);
      if (key <= query) image.data.set(palette[map[index++]], pixel);
      image.data[pixel + 3] = 255;
    }
  }
  return image;
}
