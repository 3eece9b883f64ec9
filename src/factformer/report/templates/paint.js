// Values to colours: pictures of fields, and the bar that says which colour means what. A colour map is bytes, three a colour.
function fromBase64(text) {
  const binary = atob(text), bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

// The first row of values is at the bottom of the picture; what is not a number is grey.
function paintValues(canvas, { values, width, height }, colors, [low, high]) {
  const last = colors.length / 3 - 1;
  if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
  const context = canvas.getContext("2d"), image = context.createImageData(width, height), pixels = image.data;
  for (let row = 0; row < height; row++) {
    for (let column = 0; column < width; column++) {
      const value = values[(height - 1 - row) * width + column], pixel = 4 * (row * width + column);
      pixels[pixel + 3] = 255;
      if (Number.isNaN(value)) { pixels[pixel] = pixels[pixel + 1] = pixels[pixel + 2] = 128; continue; }
      const color = 3 * Math.round(last * Math.min(1, Math.max(0, (value - low) / (high - low))));
      pixels[pixel] = colors[color]; pixels[pixel + 1] = colors[color + 1]; pixels[pixel + 2] = colors[color + 2];
    }
  }
  context.putImageData(image, 0, 0);
}

function paintBar(canvas, colors) {
  const context = canvas.getContext("2d"), image = context.createImageData(256, 1), last = colors.length / 3 - 1;
  for (let i = 0; i < 256; i++) {
    const color = 3 * Math.round(last * i / 255);
    image.data.set([colors[color], colors[color + 1], colors[color + 2], 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
}
