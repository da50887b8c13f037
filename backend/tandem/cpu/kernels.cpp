// What Python calls.
#include <omp.h>

#include <algorithm>

#include "chains.h"
#include "pass.h"
#include "penalties.h"
#include "rows.h"
#include "sampling.h"
#include "told.h"

namespace {

// some(row, draws) for all rows, whoever does it. For a few numbers one thread does not call others,
// who would have to be given a core first.
template <class Some>
void each_row(int rows, int vocabulary, int threads, Some some) {
  constexpr int kFewNumbers = 1 << 16;
  const bool alone = int64_t(rows) * vocabulary <= kFewNumbers;
#pragma omp parallel num_threads(alone ? 1 : std::min(rows, threads))
  {
    Draws draws;
#pragma omp for schedule(dynamic)
    for (int row = 0; row < rows; ++row) some(row, draws);
  }
}

// A row of verified chains: draws its token, and keeps in mind where its chain ends.
void verify_row(ToldVerified& told, int row, const float* logits, int vocabulary, const float* q,
                uint64_t key, Draws& draws) {
  const auto& own = told.own[told.owner[row]];
  std::atomic<int32_t>& ending = told.ending[told.owner[row]];
  const int place = row - own.first;
  if (place > ending.load(std::memory_order_relaxed)) return;  // nobody looks behind a chain's end
  if (own.noise != kGreedy) {
    draws.scores.resize(vocabulary);
    limit_row(logits, vocabulary, own.limits, draws, draws.scores.data());
    logits = draws.scores.data();
  }
  const bool last = place == own.count, judged = own.q_row >= 0 && !last;
  const auto token = int32_t(told.drafted[row]);
  const RowPlan plan{own.noise, token, judged ? own.q_row + place : -1, told.keys[row]};
  told.tokens[row] = draw_row(logits, vocabulary, plan, q, key, draws, told.kept[row]);
  if (last || (judged ? bool(told.kept[row]) : told.tokens[row] == token)) return;
  int32_t seen = ending.load(std::memory_order_relaxed);
  while (place < seen && !ending.compare_exchange_weak(seen, place, std::memory_order_relaxed)) {
  }
}

}  // namespace

extern "C" {
void* tandem_space() { return new Space; }
void tandem_release(void* space) { delete static_cast<Space*>(space); }
int tandem_eights() { return kEights; }  // whether weights can be packed in 8 bits
// How many numbers of the weight's type; eights: it is to be packed in 8 bits.
int64_t tandem_packed(int rows, int columns, int bfloat, int gated, int eights) {
  if (eights) return packed_size(rows, up(columns, 2), gated);
  if (bfloat && kTiles) return tiled_size(rows, columns, gated);
  return packed_size(rows, bfloat && kTwos ? up(columns, 2) * 2 : columns, gated);
}
void tandem_pack(const void* weight, int rows, int columns, int bfloat, int gated, int lowest, void* to) {
  const auto* halves = static_cast<const uint16_t*>(weight);
  if (!bfloat)
    pack(static_cast<const float*>(weight), rows, columns, gated, static_cast<float*>(to));
  else if (lowest)
    pack(halves, rows, columns, gated, static_cast<Eights*>(to), lowest);
  else if (kTiles)
    pack_tiles(halves, rows, columns, gated, static_cast<uint16_t*>(to));
  else
    pack(halves, rows, columns, gated, static_cast<Half*>(to));
}
// y [rows, matrix.rows] = x [rows, matrix.columns] by the transposed weight, and the bias.
void tandem_multiply(const Matrix* matrix, const float* x, int rows, float* y, int threads) {
  const int columns = matrix->columns;
  const Inputs as_it_is{x, nullptr, size_t(columns)};
  OwnInputs inputs;
  const bool rounds = matrix->bfloat && kTwos;
  if (rounds) fit_inputs(inputs, rows, columns, true);
  Team team;
  team.fit(threads);
#pragma omp parallel num_threads(threads)
  {
    if (rounds)
      team.each(rows, [&](int row) { inputs.put_row(row, 0, x + size_t(row) * columns, columns); });
    multiply(team, *matrix, rounds ? inputs : as_it_is, rows, y);
  }
}
// What each forward pass fetches at its end.
void tandem_want(void* space, const Stretch* some, int count) {
  static_cast<Space*>(space)->wanted.assign(some, some + count);
}
// A pass (see `ToldPass`) that leaves logits [rows, vocabulary]: the likeliest token of each row. meanwhile:
// None, or what this thread calls while others have begun.
Object* tandem_forward(const Model* model, Object* reading, Object* wanted, float* logits, void* space,
                       Object* meanwhile) {
  Space& room = *static_cast<Space*>(space);
  const Step step = room.pass.read(reading, wanted, logits, model->block_size);
  if (PyErr_Occurred()) return nullptr;
  unlocked([&](void* thread) {
    const auto call = [&] { call_locked(meanwhile, thread); };
    if (meanwhile != &_Py_NoneStruct)
      model->bfloat ? forward_beside<uint16_t>(*model, step, room, call)
                    : forward_beside<float>(*model, step, room, call);
    else
      model->bfloat ? forward<uint16_t>(*model, step, room, [] {})
                    : forward<float>(*model, step, room, [] {});
    room.fetch_wanted();
  });
  if (PyErr_Occurred()) return nullptr;
  return list_of(step.best, step.picked);
}
// Chains (see `ToldChains`). first: a pass that their first tokens are drawn behind, or an empty tuple.
Object* tandem_chains(const Model* model, Object* first, Object* fed, Object* chains, Object* about,
                      void* space) {
  Space& room = *static_cast<Space*>(space);
  const Chains all = room.chains.read(chains, fed, about, model->block_size);
  Step step{};
  if (PyErr_Occurred()) return nullptr;
  const bool reads = PyTuple_Size(first) > 0;
  if (reads) step = room.pass.read(first, nullptr, const_cast<float*>(all.logits), model->block_size);
  if (PyErr_Occurred()) return nullptr;
  unlocked([&](void*) {
    const Step* read = reads ? &step : nullptr;
    model->bfloat ? grow<uint16_t>(*model, all, read, room) : grow<float>(*model, all, read, room);
  });
  return room.chains.found(all);
}
// As `move_slots`, in all layers.
void tandem_move(const Model* model, const int32_t* slots, int count) {
#pragma omp parallel for num_threads(model->threads)
  for (int layer = 0; layer < model->layers; ++layer) {
    void* cache = model->layer[layer].cache;
    model->bfloat ? move_slots(*model, static_cast<uint16_t*>(cache), slots, count)
                  : move_slots(*model, static_cast<float*>(cache), slots, count);
  }
}
// Of logits [rows, vocabulary], in place: what texts and drafted tokens count against being said again.
void tandem_penalize(float* logits, int rows, int vocabulary, const Place* places,
                     const int64_t* texts, const int64_t* drafted, int threads) {
  each_row(rows, vocabulary, threads, [&](int row, Draws& draws) {
    const Place& place = places[row];
    draws.marks.resize(vocabulary);
    penalize({logits + row * size_t(vocabulary), vocabulary, nullptr}, place.text, texts,
             {drafted + place.drafted, place.count}, draws.marks);
  });
}
// logits to scores [rows, vocabulary].
void tandem_limit(const float* logits, int rows, int vocabulary, const Limits* limits,
                  float* scores, int threads) {
  each_row(rows, vocabulary, threads, [&](int row, Draws& draws) {
    const size_t begin = row * size_t(vocabulary);
    limit_row(logits + begin, vocabulary, limits[row], draws, scores + begin);
  });
}
// Chains (see `ToldVerified`) by logits [rows, vocabulary]: of each row up to where its chain ends the token
// drawn, and whether the one drafted behind it is kept, where that is judged by q [places, vocabulary].
Object* tandem_verify(const float* logits, int rows, int vocabulary, Object* chains, const float* q, uint64_t seed,
                      int threads) {
  ToldVerified told;
  told.read(chains, vocabulary);
  if (!PyErr_Occurred() && told.rows() != rows)
    PyErr_SetString(PyExc_ValueError, "a row for each token of the chains and one behind each is due");
  if (PyErr_Occurred()) return nullptr;
  unlocked([&](void*) {
    each_row(rows, vocabulary, threads, [&](int row, Draws& draws) {
      const float* own = logits + row * size_t(vocabulary);
      verify_row(told, row, own, vocabulary, q, key_of(seed, row), draws);
    });
  });
  return pair_of(list_of(told.tokens.data(), rows), list_of(told.kept.data(), rows));
}
// A token of each row, from scores [rows, vocabulary], and q [places, vocabulary] or null; seed: of
// this launch's random numbers.
void tandem_judge(const float* scores, int rows, int vocabulary, const RowPlan* plans,
                  const float* q, uint64_t seed, int64_t* tokens, int8_t* kept, int threads) {
  each_row(rows, vocabulary, threads, [&](int row, Draws& draws) {
    tokens[row] = draw_row(scores + row * size_t(vocabulary), vocabulary, plans[row], q,
                           key_of(seed, row), draws, kept[row]);
  });
}
}
