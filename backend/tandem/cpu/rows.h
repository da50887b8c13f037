// What is done to one row: norms, rotary positions, storing keys and values.
#pragma once

#include <cmath>

#include "numbers.h"
#include "structures.h"

namespace {

float dot(const float* a, const float* b, int width) {
  const int whole = width - width % kLanes, rest = width - whole;
  Floats sums = {};
  for (int i = 0; i < whole; i += kLanes) sums = fused(load(a + i), load(b + i), sums);
  if (rest) sums = fused(load_some(a + whole, rest), load_some(b + whole, rest), sums);
  return sum(sums);
}

void normalize(const float* x, const float* scale, int width, float epsilon, float* y) {
  if (!scale) {  // there is no norm
    std::memmove(y, x, size_t(width) * sizeof(float));
    return;
  }
  const float factor = 1 / std::sqrt(dot(x, x, width) / width + epsilon);
  for (int i = 0; i < width; ++i) y[i] = x[i] * factor * scale[i];
}

void rotate(float* head, const float* cos, const float* sin, int size) {
  const int half = size / 2;
  for (int i = 0; i < half; ++i) {
    const float low = head[i], high = head[i + half];
    head[i] = low * cos[i] + high * sin[i];
    head[i + half] = high * cos[i + half] + low * sin[i + half];
  }
}

// Whether all are numbers, and finite: times zero they are zero.
template <class W>
bool all_finite(const W* values, int count) {
  const int whole = count - count % kLanes;
  Floats zeros = {};
  for (int i = 0; i < whole; i += kLanes) zeros = fused(load(values + i), all(0.0f), zeros);
  if (whole < count) zeros = fused(load_some(values + whole, count - whole), all(0.0f), zeros);
  return sum(zeros) == 0;
}

// Norms and rotates a row's queries and keys, and stores its keys and values. Returns whether some
// of the values are not finite.
template <class W>
bool prepare(const Model& model, const Layer& layer, int position, int slot, float* qkv) {
  const int size = model.head_dim;
  for (int head = 0; head < model.heads + model.kv_heads; ++head) {
    float* values = qkv + head * size;
    const float* scale = head < model.heads ? layer.query_norm : layer.key_norm;
    if (scale) normalize(values, scale, size, model.epsilon, values);
    rotate(values, model.cos + size_t(position) * size, model.sin + size_t(position) * size, size);
  }
  const int width = 2 * model.kv_heads * size;
  W* stored = static_cast<W*>(layer.cache) + size_t(slot) * width;
  const float* made = qkv + model.heads * size;
  for (int i = 0; i < width; ++i) narrow(made[i], stored + i);
  return !all_finite(stored + width / 2, width / 2);
}

}  // namespace
