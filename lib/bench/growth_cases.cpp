// Rows "growth/PASS/MODEL/Nt": how much dearer things become as a sequence grows. Achieved is a ratio of two times of
// one run; less is better.
//
//   decode    `tokens` steps behind the second of `positions` against the same behind the first; 1 is no growth
//   prefill   a prompt of the second of `positions` tokens against one of the first; the limit is their ratio
//   chunk     the slowest place among `tokens` consecutive steps against the fastest, each the best of its repetitions
#include <algorithm>

#include "samba/bench/shapes.h"
#include "samba/core/error.h"
#include "samba/model/samba_stack.h"
#include "samba/numerics/generator.h"

namespace samba::bench {

namespace {

constexpr Index kMostPosition = 1 << 20;

struct Growth {
  std::string pass;
  StackConfig config;
  Index first = 0, second = 0;  // positions
  Index tokens = 0;
};

// A stack and what it is fed with.
class Feed {
 public:
  Feed(const Context& context, const Growth& growth, int threads)
      : executor_(context.executor(threads)), logits_(static_cast<std::size_t>(growth.config.vocab)) {
    Generator generator(1);
    stack_ = std::make_unique<SambaStack>(*executor_, growth.config, generator, SambaStack::Use::inference);
    for (Index i = 0; i < std::max(growth.second, growth.tokens); ++i) {
      ids_.push_back(static_cast<std::int32_t>(i * 31 % growth.config.vocab));
    }
  }

  // The state behind `position` tokens, with room for `tokens` more.
  std::unique_ptr<SambaState> state_at(Index position, Index tokens) {
    auto state = stack_->allocate_state(1, position + tokens);
    prefill(position, *state);
    return state;
  }
  void prefill(Index length, SambaState& state) {
    stack_->prefill(std::span(ids_).first(static_cast<std::size_t>(length)), length, state, logits_);
  }
  void step(Index i, SambaState& state) {
    stack_->step(std::span(ids_).subspan(static_cast<std::size_t>(i), 1), state, logits_);
  }

 private:
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<SambaStack> stack_;
  std::vector<std::int32_t> ids_;
  std::vector<float> logits_;
};

std::vector<Timing> time_decode(const Context& context, const Growth& growth, Feed& feed) {
  std::vector<std::unique_ptr<SambaState>> bases, states(2);
  for (const Index position : {growth.first, growth.second}) bases.push_back(feed.state_at(position, growth.tokens));
  std::vector<Side> sides;
  for (std::size_t i = 0; i < 2; ++i) {
    sides.push_back({.work =
                         [&, i] {
                           for (Index t = 0; t < growth.tokens; ++t) feed.step(t, *states[i]);
                         },
                     .prepare = [&, i] { states[i] = bases[i]->clone(); }});
  }
  return measure(sides, context.measuring);
}

std::vector<Timing> time_prefill(const Context& context, const Growth& growth, Feed& feed) {
  std::vector<std::unique_ptr<SambaState>> states;
  std::vector<Side> sides;
  for (const Index length : {growth.first, growth.second}) {
    states.push_back(feed.state_at(1, length));
    SambaState* state = states.back().get();
    sides.push_back(
        {.work = [&, state, length] { feed.prefill(length, *state); }, .prepare = [state] { state->reset(); }});
  }
  return measure(sides, context.measuring);
}

// The fastest and the slowest place.
std::vector<Timing> time_chunk(const Context& context, const Growth& growth, Feed& feed) {
  const std::unique_ptr<SambaState> base = feed.state_at(growth.first, growth.tokens);
  std::vector<double> best(static_cast<std::size_t>(growth.tokens), 1e30);
  const int repetitions = context.measuring.repetitions;
  for (int round = 0; round <= repetitions; ++round) {  // the first warms up
    const std::unique_ptr<SambaState> state = base->clone();
    for (Index t = 0; t < growth.tokens; ++t) {
      const double start = wall_seconds();
      feed.step(t, *state);
      double& place = best[static_cast<std::size_t>(t)];
      if (round > 0) place = std::min(place, wall_seconds() - start);
    }
  }
  const auto [fastest, slowest] = std::minmax_element(best.begin(), best.end());
  Timing low, high;
  low.wall_min = low.wall_median = *fastest;
  high.wall_min = high.wall_median = *slowest;
  low.repetitions = high.repetitions = repetitions;
  return {low, high};
}

Row measure_growth(const Context& context, const Growth& growth, const std::string& name, int threads) {
  Feed feed(context, growth, threads);
  const std::vector<Timing> timings = growth.pass == "decode"    ? time_decode(context, growth, feed)
                                      : growth.pass == "prefill" ? time_prefill(context, growth, feed)
                                                                 : time_chunk(context, growth, feed);
  Row row{.name = name, .threads = threads, .unit = "x", .less_is_better = true, .limit_name = "no growth"};
  row.achieved = timings[1].wall_min / timings[0].wall_min;
  row.limit = 1.0;
  if (growth.pass == "prefill") {
    row.limit = static_cast<double>(growth.second) / static_cast<double>(growth.first);
    row.limit_name = "ratio of the lengths";
  }
  row.timing = timings[1];
  return row;
}

}  // namespace

void add_growth(const RowSource& row, std::vector<Case>& cases) {
  const JsonFields fields = row.fields();
  Growth growth;
  growth.config = row.model();
  growth.pass = fields.choice("pass", "decode", {"decode", "prefill", "chunk"});
  growth.tokens = fields.integer("tokens", 64, 1, kMostPosition);
  const std::vector<Index> positions = row.sizes("positions");
  const std::size_t wanted = growth.pass == "chunk" ? 1 : 2;
  if (positions.size() != wanted) fields.refuse("positions", "a list of " + std::to_string(wanted) + " of them");
  growth.first = positions.front();
  growth.second = positions.back();
  if (growth.second + growth.tokens > position_limit(growth.config)) {
    fields.refuse("positions", "below the model's limit of " + std::to_string(position_limit(growth.config)));
  }
  const std::string base = "growth/" + growth.pass + "/" + fields.text("name", row.json.value("model", ""));
  Case c{.rows = {}, .quick = row.quick(), .run = {}};
  for (const int threads : row.threads) c.rows.push_back(thread_row(base, threads));
  c.run = [growth, base](const Context& context, const Wanted& wanted_row) {
    std::vector<Row> rows;
    for (const int threads : context.threads) {
      const std::string name = thread_row(base, threads);
      if (wanted_row(name)) rows.push_back(measure_growth(context, growth, name, threads));
    }
    return rows;
  };
  cases.push_back(std::move(c));
}

}  // namespace samba::bench
