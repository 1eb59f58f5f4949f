// Several ranks train one model to the bits of one process. The ranks are threads here.
#include <catch2/catch.hpp>

#include <cmath>
#include <map>

#include "error_of.h"
#include "samba/backends/registry.h"
#include "samba/core/error.h"
#include "samba/core/numbers.h"
#include "samba/numerics/fold.h"
#include "samba/train/checkpoint.h"
#include "samba/train/local_communicator.h"
#include "samba/train/trainer.h"
#include "temporary_folder.h"

using namespace samba;

namespace {

struct Case {
  std::string name;
  SambaConfigFields model;
  OptimizerSettings optimizer;
  Index rows = 16;
  Index length = 64;
  std::vector<int> ranks = {2, 4, 8};
};

SambaConfigFields hybrid() {
  SambaConfigFields fields;
  fields.vocab = 50;
  fields.d_model = 32;
  fields.layers = {"mamba3", "attention", "mamba3"};
  fields.n_heads = 2;
  fields.n_kv_heads = 1;
  fields.intermediate = 40;
  return fields;
}

// Step s: ids with a skew, some targets ignored.
std::pair<Array, Array> batch_of(const Case& shape, Index step) {
  Array inputs(DType::int32, {shape.rows, shape.length});
  Array targets(DType::int32, {shape.rows, shape.length});
  std::uint64_t state = 88172645463325252ULL + static_cast<std::uint64_t>(step);
  const auto draw = [&] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  };
  auto* ids = reinterpret_cast<std::int32_t*>(inputs.data());
  auto* classes = reinterpret_cast<std::int32_t*>(targets.data());
  const auto vocab = static_cast<std::uint64_t>(shape.model.vocab);
  for (Index i = 0; i < shape.rows * shape.length; ++i) {
    ids[i] = static_cast<std::int32_t>(draw() % 3 == 0 ? draw() % vocab : draw() % 5);
    classes[i] = draw() % 11 == 0 ? -100 : static_cast<std::int32_t>(draw() % vocab);
  }
  return {std::move(inputs), std::move(targets)};
}

struct Seen {
  std::uint32_t loss = 0, lr = 0, norm = 0;
  Index counted = 0;
  std::string parameters;
  bool operator==(const Seen&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Seen& seen) {
  return out << std::hex << seen.loss << " " << seen.lr << " " << seen.norm << " " << seen.parameters;
}

constexpr Index kSteps = 3;

// Trains and tells what each step gave; `after` sees the trainer at the end.
std::vector<Seen> train(const Case& shape, const RankPlace& place, const std::function<void(SambaTrainer&)>& after = {},
                        const char* device = "cpu") {
  const auto executor = make_executor(device, {1, "", NumericMode::identical});
  const Schedule schedule({"cosine", 1e-2, 1e-3, 1, 20});
  const auto trainer = SambaTrainer::create(*executor, make_config(shape.model), 11, shape.optimizer, schedule, place);
  std::vector<Seen> seen;
  for (Index step = 0; step < kSteps; ++step) {
    const auto [inputs, targets] = batch_of(shape, step);
    const StepResult result = trainer->train_step(inputs, targets);
    seen.push_back({to_bits(result.loss), to_bits(result.lr), to_bits(result.total_norm.value_or(0.0F)),
                    result.counted_targets, trainer->stack().parameters_sha256()});
  }
  if (after) after(*trainer);
  return seen;
}

std::vector<Case> cases() {
  std::vector<Case> cases;
  Case one{"hybrid, tied", hybrid(), {}};
  one.optimizer.accumulation_steps = 1;
  cases.push_back(one);
  one.name = "hybrid, untied, dropout, clip";
  one.model.tie_embeddings = false;
  one.model.dropout = 0.25;
  one.optimizer.max_norm = 0.5;
  cases.push_back(one);
  one.name = "tied, dropout, clip, two microbatches";
  one.model.tie_embeddings = true;
  one.optimizer.accumulation_steps = 2;
  cases.push_back(one);
  one.name = "untied, eight microbatches";
  one.model.tie_embeddings = false;
  one.optimizer.accumulation_steps = 8;
  one.length = 128;
  cases.push_back(one);
  one.name = "attention alone, four microbatches of an odd number of leaves";
  one.model.layers = {"attention"};
  one.optimizer.accumulation_steps = 4;
  one.rows = 12;
  one.ranks = {2, 4};
  cases.push_back(one);
  return cases;
}

}  // namespace

TEST_CASE("ranks have the losses, norms and parameters of one process after every step") {
  for (const Case& shape : cases()) {
    CAPTURE(shape.name);
    Array first, second;
    const std::vector<Seen> alone = train(shape, {}, [&](SambaTrainer& trainer) {
      first = trainer.exp_avg();
      second = trainer.exp_avg_sq();
    });
    for (const int count : shape.ranks) {
      for (const Index bucket : {Index{1}, Index{1} << 20}) {
        CAPTURE(count, bucket);
        LocalRanks ranks(count);
        std::vector<std::vector<Seen>> seen(static_cast<std::size_t>(count));
        std::vector<int> owners(static_cast<std::size_t>(first.size()));
        std::mutex mutex;
        ranks.run([&](Communicator& communicator) {
          const RankPlace place{&communicator, shape.rows, shape.length, bucket};
          auto mine = train(shape, place, [&](SambaTrainer& trainer) {
            // Each element's moments are at one rank, and are those of one process.
            const Optimizer& optimizer = trainer.optimizer();
            const std::lock_guard lock(mutex);
            Index at = 0;
            for (const ParameterRange& range : optimizer.ranges()) {
              for (Index i = range.first; i < range.first + range.count; ++i, ++at) {
                const auto place_of = static_cast<std::size_t>(i);
                const bool equal = to_bits(optimizer.exp_avg()[at]) == to_bits(first.floats()[i]) &&
                                   to_bits(optimizer.exp_avg_sq()[at]) == to_bits(second.floats()[i]);
                owners[place_of] += equal ? 1 : 1000;
              }
            }
            if (at != optimizer.moment_elements()) throw Error(ErrorKind::internal, "ranges and moments differ");
          });
          seen[static_cast<std::size_t>(communicator.rank())] = std::move(mine);
        });
        for (const auto& mine : seen) CHECK(mine == alone);
        CHECK(std::all_of(owners.begin(), owners.end(), [](int owner) { return owner == 1; }));
      }
    }
  }
}

namespace {

// Takes steps [first, end) and saves; `from` may be empty: then the run begins.
void run_part(const Case& shape, const StackConfig& config, Communicator* ranks, Index first, Index end,
              const Path& from, const Path& to) {
  const auto executor = make_executor("cpu", {1, "", NumericMode::identical});
  const RankPlace place{ranks, shape.rows, shape.length, 1};
  const auto trainer = from.empty() ? SambaTrainer::create(*executor, config, 11, shape.optimizer, {}, place)
                                    : load_for_training(*executor, from, {}, place);
  for (Index step = first; step < end; ++step) {
    const auto [inputs, targets] = batch_of(shape, step);
    trainer->train_step(inputs, targets);
  }
  save_checkpoint(*trainer, to);
}

void run_part_on(int count, const Case& shape, const StackConfig& config, Index first, Index end, const Path& from,
                 const Path& to) {
  if (count == 1) {
    run_part(shape, config, nullptr, first, end, from, to);
    return;
  }
  LocalRanks(count).run([&](Communicator& ranks) { run_part(shape, config, &ranks, first, end, from, to); });
}

}  // namespace

TEST_CASE("ranks write the checkpoint of one process, and any number of ranks goes on from it") {
  Case samba{"", hybrid(), {}};
  samba.optimizer.max_norm = 1.0;
  Case general = samba;  // samba.stack.v1 with a momentum buffer
  general.optimizer = OptimizerSettings::defaults(OptimizerKind::sgd);
  general.optimizer.momentum = 0.9;
  StackConfig general_config(make_config(general.model));
  general_config.samba.reset();
  general_config.layers[1].transformer.window = 16;
  const std::pair<Case, StackConfig> kinds[] = {{samba, make_config(samba.model)}, {general, general_config}};
  for (const auto& [shape, config] : kinds) {
    const TemporaryFolder folder;
    run_part_on(1, shape, config, 0, 2, {}, folder / "alone");
    run_part_on(1, shape, config, 2, 4, folder / "alone", folder / "alone4");
    for (const int count : {2, 8}) {
      const Path part = folder / ("part" + std::to_string(count));
      run_part_on(count, shape, config, 0, 2, {}, part);
      CHECK(read_file(part) == read_file(folder / "alone"));
      for (const int then : {1, 4, 8}) {
        CAPTURE(count, then);
        const Path end = folder / "end";
        run_part_on(then, shape, config, 2, 4, part, end);
        CHECK(read_file(end) == read_file(folder / "alone4"));
      }
    }
    CHECK(folder.entries() == 5);  // no temporary file is left
  }
}

TEST_CASE("a checkpoint that one rank cannot write is refused by all, and the old one stays") {
  const Case shape{"", hybrid(), {}};
  const StackConfig config = make_config(shape.model);
  const TemporaryFolder folder;
  run_part_on(2, shape, config, 0, 1, {}, folder / "model");
  const std::string before = read_file(folder / "model");
  const Error error = error_of([&] { run_part_on(2, shape, config, 0, 1, {}, folder / "nowhere" / "model"); });
  CHECK(error.kind() == ErrorKind::value);
  CHECK(std::string(error.what()).find("nowhere") != std::string::npos);
  CHECK(read_file(folder / "model") == before);
  CHECK(folder.entries() == 1);
}

TEST_CASE("ranks on a device whose memory the host does not read have the bits of one process") {
  const std::vector<std::string> devices = compiled_devices();
  if (std::find(devices.begin(), devices.end(), "gpu-host") == devices.end()) {
    WARN("skipped: the device gpu-host is not compiled in");
    return;
  }
  Case shape{"", hybrid(), {}};
  shape.model.layers = {"attention"};
  shape.model.dropout = 0.25;
  shape.optimizer.max_norm = 0.5;
  shape.rows = 4;
  for (const bool tied : {true, false}) {
    shape.model.tie_embeddings = tied;
    const std::vector<Seen> alone = train(shape, {});
    LocalRanks(2).run([&](Communicator& ranks) {
      if (train(shape, {&ranks, shape.rows, shape.length, 1}, {}, "gpu-host") != alone) {
        throw Error(ErrorKind::internal, "the bits differ");
      }
    });
  }
}

TEST_CASE("the moments of a rank are fewer the more ranks there are") {
  SambaConfigFields fields = hybrid();
  fields.vocab = 2000;
  const Registry registry{StackConfig(make_config(fields))};
  for (const int ranks : {2, 4, 8, 16}) {
    const GradientShares shares(registry, ranks, 1 << 14);
    Index total = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const Index owned = shares.owned_elements(rank);
      total += owned;
      // Borders are leaves of the clip norm: a share is off by at most one leaf a bucket on either side.
      const auto slack = 2 * kLeaf * static_cast<Index>(shares.buckets().size());
      CHECK(std::abs(owned - registry.total() / ranks) <= slack);
    }
    CHECK(total == registry.total());
  }
}

TEST_CASE("numbers of ranks that are no subtrees are refused with the accepted ones") {
  const StackConfig config(make_config(hybrid()));
  CHECK(accepted_ranks(config, {16, 64, 1}) == std::vector<int>{1, 2, 4, 8});
  CHECK(accepted_ranks(config, {16, 64, 4}) == std::vector<int>{1, 2, 4, 8});
  CHECK(accepted_ranks(config, {12, 64, 1}) == std::vector<int>{1});         // six leaves: halves of three
  CHECK(accepted_ranks(config, {12, 128, 4}) == std::vector<int>{1, 2, 4});  // whole microbatches, and no more
  CHECK(accepted_ranks(config, {8, 8, 1}) == std::vector<int>{1});           // less than a leaf each
  CHECK(accepted_ranks(config, {2048, 128, 1}) == std::vector<int>{1});      // leaves of 256 tokens
  CHECK(accepted_ranks(config, {2048, 128, 2}).back() == 2048);
  const Error error = error_of([&] { split_step(config, {16, 64, 1}, 0, 3); });
  CHECK(error.kind() == ErrorKind::value);
  CHECK(std::string(error.what()).find("3 ranks") != std::string::npos);
  CHECK(std::string(error.what()).find("accepted: 1, 2, 4, 8") != std::string::npos);

  StackConfig general = config;
  general.layers[0].kind = BlockKind::mamba2;
  CHECK(accepted_ranks(general, {16, 128, 4}) == std::vector<int>{1, 2, 4});
  const Error mamba2 = error_of([&] { split_step(general, {16, 128, 4}, 0, 8); });
  CHECK(std::string(mamba2.what()).find("layer 0 is mamba2") != std::string::npos);
}

TEST_CASE("a step that one rank refuses is refused by all and changes nothing") {
  Case shape{"", hybrid(), {}};
  shape.optimizer.max_norm = 1.0;
  LocalRanks ranks(4);
  std::vector<std::string> messages(4);
  std::vector<int> unchanged(4);  // not bool, whose elements share bytes: each rank writes its own
  ranks.run([&](Communicator& communicator) {
    const auto executor = make_executor("cpu", {1, "", NumericMode::identical});
    const auto trainer = SambaTrainer::create(*executor, make_config(shape.model), 11, shape.optimizer, {},
                                              {&communicator, shape.rows, shape.length});
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const std::string before = trainer->stack().parameters_sha256();
    auto [inputs, targets] = batch_of(shape, 0);
    float* weight = trainer->stack().mutable_device_parameters();
    const float kept = weight[0];
    if (rank == 2) weight[0] = kInfinity;  // one rank's memory, and an id that it reads
    reinterpret_cast<std::int32_t*>(inputs.data())[8 * 64] = 0;
    try {
      trainer->train_step(inputs, targets);
    } catch (const AgreedError& error) {
      messages[rank] = error.what();
    }
    weight[0] = kept;
    unchanged[rank] = trainer->stack().parameters_sha256() == before && trainer->completed_steps() == 0 ? 1 : 0;
    trainer->train_step(inputs, targets);
    unchanged[rank] = unchanged[rank] != 0 && trainer->completed_steps() == 1 ? 1 : 0;
  });
  for (std::size_t rank = 0; rank < 4; ++rank) {
    CHECK(messages[rank].starts_with("rank 2: "));
    CHECK(messages[rank] == messages[0]);
    CHECK(unchanged[rank] == 1);
  }
}

TEST_CASE("a lost rank ends the others' step at once") {
  const Case shape{"", hybrid(), {}};
  LocalRanks ranks(4);
  std::vector<std::string> classes(4);
  const auto body = [&](Communicator& communicator) {
    const auto executor = make_executor("cpu", {1, "", NumericMode::identical});
    const auto trainer = SambaTrainer::create(*executor, make_config(shape.model), 11, shape.optimizer, {},
                                              {&communicator, shape.rows, shape.length});
    const auto [inputs, targets] = batch_of(shape, 0);
    if (communicator.rank() == 1) throw Error(ErrorKind::resource, "the power failed");
    try {
      trainer->train_step(inputs, targets);
    } catch (const Error& error) {
      classes[static_cast<std::size_t>(communicator.rank())] = error.error_class();
      throw;
    }
  };
  const Error error = error_of([&] { ranks.run(body); });
  CHECK(std::string(error.what()) == "the power failed");
  for (const std::size_t rank : {0U, 2U, 3U}) CHECK(classes[rank] == kLostRankClass);
}

TEST_CASE("leaf sums of a part of a tensor are those of the whole") {
  for (const std::string& device : compiled_devices()) {
    if (device == "cuda" || device == "hip") continue;
    const auto executor = make_executor(device, {1, "", NumericMode::identical});
    for (const Index n : {Index{1}, Index{300}, Index{131072}, Index{140000}}) {
      const Index leaf = leaf_length(n), leaves = leaf_count(n);
      DeviceArray<float> values(executor->memory(), n);
      std::vector<float> host(static_cast<std::size_t>(n));
      for (std::size_t i = 0; i < host.size(); ++i) host[i] = std::sin(static_cast<float>(i) * 0.37F);
      values.upload(host.data());
      float whole = 0.0F;
      executor->optimizer().sums_of_squares(1, &n, values.data(), &whole);
      std::vector<float> sums(static_cast<std::size_t>(leaves));
      const Index half = leaves / 2;
      if (half > 0) executor->optimizer().leaf_sums_of_squares(leaf, half * leaf, values.data(), sums.data());
      executor->optimizer().leaf_sums_of_squares(leaf, n - half * leaf, values.data() + half * leaf,
                                                 sums.data() + half);
      TreeFold tree;
      for (const float sum : sums) tree.push(sum);
      CHECK(to_bits(tree.finish()) == to_bits(whole));
    }
  }
}
