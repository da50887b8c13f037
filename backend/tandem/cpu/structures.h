// What the kernels compute with. Models, limits and plans of rows are as Python hands them over (structures.py
// has the same, field by field), passes and chains as told.h reads them.
#pragma once

#include <cstdint>

namespace {

// Bytes of memory that may be gone since: they are asked for, not read.
struct Stretch {
  const char* begin;
  int64_t bytes;
};

struct Matrix {
  const void* weight;  // [rows, columns], packed (see outputs.h); an embedding's is not
  const float* bias;   // [rows] or null
  int32_t rows, columns, bfloat;
  int32_t gated;   // the first half of the outputs are the gates of the others
  int32_t lowest;  // of weights that are packed in 8 bits (twos.h), or 0
};

struct Layer {
  Matrix qkv, out, gate_up, down;
  const float *input_norm, *post_norm;
  const float *query_norm, *key_norm;  // [head_dim] or null
  void* cache;                         // [slots, 2 * kv_heads * head_dim], as cache.h says
};

// What a draft head makes of a token's embedding and a hidden state, each with its norm or none.
// Side by side they are what the first layer's attention reads; with a projection, that is the
// first layer's input. The hidden state may come of several of the target's.
struct Entry {
  Matrix fuse;             // [hidden, width] of the target's, side by side; or none
  const float* fuse_norm;  // [width] or null
  int32_t fuse_parts;      // of the width, each normed for itself
  const float *token_norm, *hidden_norm;  // [hidden] or null
  Matrix project;                         // [hidden, 2 * hidden]; its weight null: there is none
  int32_t hidden_first;                   // of the two; otherwise the embedding is
  int32_t blind_start;                    // at position 0 there is no token
  int32_t normed_residual;                // without a projection, the input is the normed state
  int32_t norm_output;                    // what the next pass takes has passed the last norm
};

// Of its matrices all but the embedding are stored in the same type.
struct Model {
  int32_t layers, hidden, heads, kv_heads, head_dim, inner, block_size, threads;
  int32_t bfloat;  // the cache
  float epsilon;
  const Layer* layer;
  Matrix embedding;         // [vocabulary, hidden]
  const float* final_norm;  // or null: there is none
  const float *cos, *sin;  // [positions, head_dim], the signs folded into sin
  Matrix head;
  Entry entry;  // of a draft head
};

struct Query {
  int32_t blocks;  // where its block table begins
  int32_t start, stored, length;
  int32_t parents;  // where its nodes' parents begin, or -1: a chain
};

struct Step {
  int32_t rows, queries, picked, taps;
  const int64_t* tokens;    // [rows]
  const float* states;      // hidden states for a draft head, or null: [rows, hidden], or...
  int32_t fused;            // ... if this is 0, [rows, fuse.columns]
  int32_t picks_hidden;     // tapped, of the last layer's end alone, or normed have picked rows only
  const Query* query;       // [queries]
  const int32_t* blocks;    // block tables, one after the other
  const int32_t* parents;   // of trees, one after the other
  const int32_t* pick;      // [picked] rows whose logits are wanted
  const int32_t* tap;       // [taps] layers whose inputs are wanted
  float* logits;            // [picked, vocabulary]
  float* tapped;            // [rows, taps * hidden] or null
  float* normed;            // [rows, hidden] after the last norm, or null
  int64_t* best;            // [picked] the first of each row's largest logits, or null
};

// How a row's logits become scores.
struct Limits {
  float temperature, min_p, top_p;
  int32_t top_k;  // the vocabulary's size where all may be drawn
};

// How a row's token is drawn from its scores: see verification/judging.py.
struct RowPlan {
  int32_t noise, token, q_row;
  uint64_t key;
};

// The tokens before a place, and how they count against being said again.
struct Text {
  int32_t begin, prompt, length;  // among all texts; of its tokens the first are the prompt
  float repetition, frequency, presence;
};

// A place behind a text and drafted tokens.
struct Place {
  Text text;
  int32_t drafted, count;  // where they begin, and how many they are
};

// What is added to a token's logit.
struct Bias {
  int32_t token;
  float added;
};

// A chain of tokens to be drafted.
struct Chain {
  Limits limits;
  Text text;
  int32_t bias, biases;   // where they begin, and how many they are
  int32_t noise, length;  // length: tokens, at least one
  int32_t blocks;         // where its block table begins
  int32_t start;          // position of the first drafted token's key and value
  int32_t q_row;          // of the first token's distribution, or -1: none is wanted
};

struct Chains {
  int32_t count, longest, vocabulary;  // the target's
  float least;             // a chain ends before a token that is kept with a smaller chance; 0: none does
  const Chain* chain;      // [count]
  const float* logits;     // [count, vocabulary] of the first tokens, or null
  const float* states;     // [count, hidden] of a draft head, or null
  const int64_t* ids;      // [rows of the model's head] what its tokens are to the target, or null
  const int32_t* blocks;   // block tables, one after the other
  const int64_t* texts;    // one after the other
  const Bias* bias;
  const uint64_t* keys;    // [count, longest] of keyed noise
  uint64_t seed;           // of all other noise
  float* q;                // [.., vocabulary] or null
  int64_t* tokens;         // [count, longest]
  // Where chains may end:
  const float* kept;       // [kinds of noise, kShares] chance of a token behind kept ones, ...
  float* sure;             // [count, longest] ... by the share of the likeliest, which is told
  float* reach;            // [count] chance that all of a chain is kept, 1 before
  int32_t* lengths;        // [count] tokens drawn
};
constexpr int kShares = 16;

}  // namespace
