// Passes and chains as Python tells of them, in lists and tuples, and as the kernels take them.
#pragma once

#include <algorithm>
#include <atomic>
#include <vector>

#include "objects.h"
#include "structures.h"

namespace {

// Queries of `attention.plan.Query`, and the tables that they point into.
struct ToldQueries {
  std::vector<Query> query;
  std::vector<int32_t> blocks, parents;

  void read(Object* queries, int block_size) {
    enum { kBlocks, kStart, kLength, kParents, kStored };
    query.clear(), blocks.clear(), parents.clear();
    each_of(queries, [&](Object* one) {
      Query& own = query.emplace_back();
      own = {int32_t(blocks.size()), field<int32_t>(one, kStart), field<int32_t>(one, kStored),
             field<int32_t>(one, kLength), -1};
      const int end = own.start + own.stored + own.length;
      append(PyTuple_GetItem(one, kBlocks), blocks, (end + block_size - 1) / block_size);
      if (Object* tree = PyTuple_GetItem(one, kParents); tree != &_Py_NoneStruct) {
        own.parents = int32_t(parents.size());
        append(tree, parents);
      }
    });
  }
};

// A pass: `Reading`, and `Wanted`, which may be an empty tuple; null: nothing but logits is.
struct ToldPass {
  ToldQueries queries;
  std::vector<int64_t> tokens, best;
  std::vector<int32_t> picked, taps;

  Step read(Object* reading, Object* wanted, float* logits, int block_size) {
    enum { kTokens, kQueries, kRows };
    tokens.clear(), picked.clear(), taps.clear();
    append(PyTuple_GetItem(reading, kTokens), tokens);
    queries.read(PyTuple_GetItem(reading, kQueries), block_size);
    append(PyTuple_GetItem(reading, kRows), picked);
    best.resize(picked.size());
    Step step{};
    step.rows = int32_t(tokens.size());
    step.queries = int32_t(queries.query.size());
    step.picked = int32_t(picked.size());
    step.tokens = tokens.data();
    step.query = queries.query.data();
    step.blocks = queries.blocks.data();
    step.parents = queries.parents.data();
    step.pick = picked.data();
    step.logits = logits;
    if (!wanted) return step;
    step.best = best.data();
    if (PyTuple_Size(wanted)) want(wanted, step);
    return step;
  }

 private:
  void want(Object* wanted, Step& step) {
    enum { kLayers, kTapped, kNormed, kPicksHidden, kStates, kFused };
    step.taps = append(PyTuple_GetItem(wanted, kLayers), taps);
    step.tap = taps.data();
    step.tapped = field<float*>(wanted, kTapped);
    step.normed = field<float*>(wanted, kNormed);
    step.picks_hidden = field<int32_t>(wanted, kPicksHidden);
    step.states = field<const float*>(wanted, kStates);
    step.fused = field<int32_t>(wanted, kFused);
  }
};

// `scores.limits_of`, or an empty tuple where all may be drawn.
inline Limits told_limits(Object* limits, int vocabulary) {
  enum { kTemperature, kMinP, kTopK, kTopP };
  if (!PyTuple_Size(limits)) return {1, 0, 1, vocabulary};
  const auto top_k = field<int32_t>(limits, kTopK);
  return {field<float>(limits, kTemperature), field<float>(limits, kMinP), field<float>(limits, kTopP),
          top_k > 0 ? std::min(top_k, vocabulary) : vocabulary};
}

// Chains of `ChainDraw`, and what becomes of them.
struct ToldChains {
  ToldQueries queries;
  std::vector<Chain> chain;
  std::vector<int64_t> texts, tokens;
  std::vector<Bias> bias;
  std::vector<uint64_t> keys;
  std::vector<float> sure, reach;
  std::vector<int32_t> lengths;

  // about: `Chaining`.
  Chains read(Object* chains, Object* fed, Object* about, int block_size) {
    enum { kVocabulary, kLogits, kStates, kIds, kQ, kSeed, kLeast, kKept };
    chain.clear(), texts.clear(), bias.clear(), keys.clear();
    Chains all{};
    queries.read(fed, block_size);
    if (PyErr_Occurred()) return all;
    if (queries.query.empty() || PySequence_Size(chains) != ssize_t(queries.query.size())) {
      PyErr_SetString(PyExc_ValueError, "a query for each chain is due");
      return all;
    }
    all.vocabulary = field<int32_t>(about, kVocabulary);
    each_of(chains, [&](Object* one) { read_chain(one, all.vocabulary); });
    all.count = int32_t(chain.size());
    for (const Chain& one : chain) all.longest = std::max(all.longest, one.length);
    spread_keys(chains, all.longest);
    const size_t places = size_t(all.count) * all.longest;
    tokens.assign(places, 0), sure.assign(places, 0), reach.assign(all.count, 1);
    lengths.resize(all.count);
    std::transform(chain.begin(), chain.end(), lengths.begin(), [](const Chain& one) { return one.length; });
    all.chain = chain.data();
    all.logits = field<const float*>(about, kLogits);
    all.states = field<const float*>(about, kStates);
    all.ids = field<const int64_t*>(about, kIds);
    all.q = field<float*>(about, kQ);
    all.seed = field<uint64_t>(about, kSeed);
    all.least = field<float>(about, kLeast);
    all.kept = field<const float*>(about, kKept);
    all.blocks = queries.blocks.data();
    all.texts = texts.data(), all.bias = bias.data(), all.keys = keys.data();
    all.tokens = tokens.data(), all.sure = sure.data(), all.reach = reach.data();
    all.lengths = lengths.data();
    return all;
  }

  // Of each chain its tokens, and what it was sure of: one more than tokens where it ended early.
  Object* found(const Chains& all) const {
    Object* drafted = PyList_New(all.count);
    Object* shares = PyList_New(all.least ? all.count : 0);
    for (int i = 0; i < all.count; ++i) {
      const size_t at = size_t(i) * all.longest;
      PyList_SetItem(drafted, i, list_of(&tokens[at], lengths[i]));
      if (all.least) PyList_SetItem(shares, i, list_of(&sure[at], std::min(lengths[i] + 1, chain[i].length)));
    }
    return pair_of(drafted, shares);
  }

 private:
  enum { kRequest, kNoise, kLength, kKeys, kQRow, kLimits, kPenalties, kBiases };

  void read_chain(Object* one, int vocabulary) {
    Chain& own = chain.emplace_back();
    const Query& query = queries.query[chain.size() - 1];
    own = {};
    own.limits = told_limits(PyTuple_GetItem(one, kLimits), vocabulary);
    own.text.repetition = 1;
    own.noise = field<int32_t>(one, kNoise);
    own.length = field<int32_t>(one, kLength);
    own.q_row = field<int32_t>(one, kQRow);
    own.blocks = query.blocks;
    own.start = query.start;
    if (Object* text = PyTuple_GetItem(one, kPenalties); PyTuple_Size(text)) {
      enum { kText, kPrompt, kRepetition, kFrequency, kPresence };
      own.text = {int32_t(texts.size()),           field<int32_t>(text, kPrompt),  0,
                  field<float>(text, kRepetition), field<float>(text, kFrequency), field<float>(text, kPresence)};
      own.text.length = append(PyTuple_GetItem(text, kText), texts);
    }
    own.bias = int32_t(bias.size());
    each_of(PyTuple_GetItem(one, kBiases), [&](Object* pair) {
      bias.push_back({field<int32_t>(pair, 0), field<float>(pair, 1)});
    });
    own.biases = int32_t(bias.size()) - own.bias;
  }

  // [count, longest]
  void spread_keys(Object* chains, int longest) {
    each_of(chains, [&](Object* one) {
      const size_t begin = keys.size();
      append(PyTuple_GetItem(one, kKeys), keys);
      keys.resize(begin + longest);
    });
  }
};

// Verified chains: of `VerifiedChain`, each with a row of logits more than it has tokens.
struct ToldVerified {
  struct Own {
    Limits limits;
    int32_t noise, q_row, first, count;  // first: row; count: tokens
  };
  std::vector<Own> own;
  std::vector<int32_t> owner;                // [rows]
  std::vector<int64_t> drafted, tokens;      // [rows] behind each, or 0; drawn at each
  std::vector<uint64_t> keys;                // [rows] of keyed noise
  std::vector<int8_t> kept;                  // [rows]
  std::vector<std::atomic<int32_t>> ending;  // of each the first place that the chain does not go on from

  void read(Object* chains, int vocabulary) {
    enum { kNoise, kLimits, kKeys, kTokens, kQRow };
    each_of(chains, [&](Object* one) {
      const auto first = int32_t(drafted.size());
      const int32_t count = append(PyTuple_GetItem(one, kTokens), drafted);
      own.push_back({told_limits(PyTuple_GetItem(one, kLimits), vocabulary), field<int32_t>(one, kNoise),
                     field<int32_t>(one, kQRow), first, count});
      append(PyTuple_GetItem(one, kKeys), keys);
      drafted.push_back(0);
      keys.resize(drafted.size());
      owner.resize(drafted.size(), int32_t(own.size()) - 1);
    });
    tokens.resize(drafted.size());
    kept.resize(drafted.size());
    ending = std::vector<std::atomic<int32_t>>(own.size());
    for (size_t i = 0; i < own.size(); ++i) ending[i] = own[i].count;
  }

  int rows() const { return int(drafted.size()); }
};

}  // namespace
