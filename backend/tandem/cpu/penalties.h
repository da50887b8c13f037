// What a text, and what a request asks for, do to the logits of the place behind it.
#pragma once

#include <vector>

#include "structures.h"

namespace {

// Tokens between a text and the place, and where they are in a row of logits.
struct Drafted {
  const int64_t* tokens;
  int count;
};

// A row of logits that is edited.
struct Edited {
  float* logits;  // [width]
  int width;
  const int32_t* places;  // of the target's tokens, or -1; null: as they are

  float* of(int64_t token) const {
    const int64_t place = places ? places[token] : token;
    return place < 0 || place >= width ? nullptr : logits + place;
  }
};

bool penalizes(const Text& text) {
  return text.repetition != 1 || text.frequency != 0 || text.presence != 0;
}

// some(token) for those of the text from `first` on, and for the drafted ones.
template <class Some>
void each_token(const Text& text, const int64_t* tokens, int first, const Drafted& drafted,
                Some some) {
  for (int i = first; i < text.length; ++i) some(tokens[text.begin + i]);
  for (int i = 0; i < drafted.count; ++i) some(drafted.tokens[i]);
}

// Of prompt and output by repetition, each token once; then of the output by how often a token is
// there (frequency), and once (presence). marks: zeros for all of the target's tokens, before and
// behind.
void penalize(const Edited& row, const Text& text, const int64_t* tokens, const Drafted& drafted,
              std::vector<int32_t>& marks) {
  if (text.repetition != 1) {
    each_token(text, tokens, 0, drafted, [&](int64_t token) {
      float* found = row.of(token);
      if (!found || marks[token]++) return;
      *found = *found > 0 ? *found / text.repetition : *found * text.repetition;
    });
    each_token(text, tokens, 0, drafted, [&](int64_t token) { marks[token] = 0; });
  }
  if (text.frequency == 0 && text.presence == 0) return;
  each_token(text, tokens, text.prompt, drafted, [&](int64_t token) { ++marks[token]; });
  each_token(text, tokens, text.prompt, drafted, [&](int64_t token) {
    float* found = row.of(token);
    if (found && marks[token])
      *found = *found - text.frequency * marks[token] - text.presence;
    marks[token] = 0;
  });
}

}  // namespace
