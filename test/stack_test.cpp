// The stack and its training step: resuming, refusals, states, independence of threads and of batch (spec 60).
#include "samba/model/samba_stack.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <new>
#include <nlohmann/json.hpp>

#include "bits.h"
#include "samba/core/error.h"
#include "samba/train/checkpoint.h"
#include "small_stack.h"
#include "temporary_folder.h"

using namespace samba;

namespace {

std::atomic<long> allocations{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  void* pointer = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
// Without these a sanitizer's own would serve std::stable_sort's buffers, and free() would be the wrong end of them.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted(bytes, alignof(std::max_align_t));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  ++allocations;
  const auto unit = static_cast<std::size_t>(alignment);
  return std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
}
void operator delete(void* pointer) noexcept { std::free(pointer); }
void operator delete(void* pointer, const std::nothrow_t&) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::align_val_t) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::size_t, std::align_val_t) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::align_val_t, const std::nothrow_t&) noexcept { std::free(pointer); }

namespace {

OptimizerSettings clipped_and_accumulated() {
  OptimizerSettings settings;
  settings.max_norm = 0.25;
  settings.accumulation_steps = 2;
  return settings;
}

Schedule warmup() { return Schedule({"cosine", 0.02, 0.001, 2, 6}); }

StepResult take_step(SambaTrainer& trainer, Index step) {
  Array targets = token_array(2, 128, 11, step + 50);
  targets.values<std::int32_t>()[7] = kIgnoredTarget;
  return trainer.train_step(token_array(2, 128, 11, step), targets);
}

template <class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  FAIL("nothing was thrown");
  return "";
}

}  // namespace

TEST_CASE("a run resumed from a checkpoint equals the uninterrupted one: dropout, clipping, accumulation, schedule") {
  const TemporaryFolder folder;
  const auto executor = make_executor("cpu", {2, ""});
  const auto whole = SambaTrainer::create(*executor, small_config(0.25), 17, clipped_and_accumulated(), warmup());
  std::unique_ptr<SambaTrainer> resumed;
  for (Index step = 0; step < 4; ++step) {
    const StepResult one = take_step(*whole, step);
    if (resumed) {
      const StepResult other = take_step(*resumed, step);
      CHECK(to_bits(one.loss) == to_bits(other.loss));
      CHECK(to_bits(*one.total_norm) == to_bits(*other.total_norm));
    }
    if (step == 1) {
      save_checkpoint(*whole, folder / "a.samba");
      resumed = load_for_training(*executor, folder / "a.samba");
    }
  }
  CHECK(training_digest(*whole) == training_digest(*resumed));
  CHECK(save_checkpoint(*whole, folder / "b.samba") == save_checkpoint(*resumed, folder / "c.samba"));
}

TEST_CASE("executors and numbers of threads do not change a bit of training") {
  std::string expected;
  const auto train = [&](const std::string& device, const ExecutorOptions& options) {
    const auto executor = make_executor(device, options);
    const auto trainer = SambaTrainer::create(*executor, small_config(0.25), 17, clipped_and_accumulated(), warmup());
    take_step(*trainer, 0);
    take_step(*trainer, 1);
    if (expected.empty()) expected = training_digest(*trainer);
    INFO(device << " " << options.threads << " " << options.instruction_set);
    CHECK(training_digest(*trainer) == expected);
  };
  train("reference", {});
  for (const std::string& set : instruction_sets()) train("cpu", {1, set});
  train("cpu", {2, ""});
  train("cpu", {3, ""});
}

TEST_CASE("a refused step leaves parameters, moments, counters and the random stream as they were") {
  const auto executor = make_executor("cpu", {1, ""});
  const auto trainer = SambaTrainer::create(*executor, small_config(0.25), 17, clipped_and_accumulated(), warmup());
  take_step(*trainer, 0);
  Memory& memory = executor->memory();
  const auto refused_with = [&](float* buffer, Index index, float value, const std::string& words) {
    float old = 0.0F;
    memory.copy_to_host(&old, buffer + index, sizeof old);
    memory.copy_to_device(buffer + index, &value, sizeof value);
    trainer->stack().parameters_changed();
    const std::string before = training_digest(*trainer);
    CHECK_THAT(message_of([&] { take_step(*trainer, 1); }), Catch::Contains(words));
    CHECK(training_digest(*trainer) == before);
    memory.copy_to_device(buffer + index, &old, sizeof old);
    trainer->stack().parameters_changed();
  };
  const Registry& registry = trainer->stack().registry();
  float* parameters = trainer->stack().mutable_device_parameters();
  refused_with(trainer->optimizer().exp_avg(), 5, kQuietNan, "state.m is NaN at flat index 5");
  refused_with(trainer->optimizer().exp_avg_sq(), 6, kInfinity, "state.v is infinity at flat index 6");
  refused_with(parameters, 3, kQuietNan, "NaN");
  refused_with(parameters, registry.tensors()[registry.final_norm()].offset, kInfinity, "non-finite linear input");

  const std::string before = training_digest(*trainer);
  Array ids = token_array(2, 128, 11, 3);
  ids.values<std::int32_t>()[130] = 11;
  CHECK_THAT(message_of([&] { trainer->train_step(ids, token_array(2, 128, 11, 4)); }),
             Catch::Contains("id 11 at flat index 130"));
  CHECK_THAT(message_of([&] { trainer->train_step(token_array(3, 128, 11, 3), token_array(3, 128, 11, 4)); }),
             Catch::Contains("accumulation_steps 2"));
  CHECK_THAT(message_of([&] { trainer->train_step(token_array(2, 100, 11, 3), token_array(2, 100, 11, 4)); }),
             Catch::Contains("misaligned") && Catch::Contains("200"));
  CHECK(training_digest(*trainer) == before);

  // A trainer that was refused goes on as if nothing had happened.
  const auto other = SambaTrainer::create(*executor, small_config(0.25), 17, clipped_and_accumulated(), warmup());
  take_step(*other, 0);
  take_step(*other, 1);
  take_step(*trainer, 1);
  CHECK(training_digest(*trainer) == training_digest(*other));
}

TEST_CASE("an exhausted random stream refuses a dropout step before anything is computed") {
  const auto executor = make_executor("reference");
  Generator first(1);
  auto stack = std::make_unique<SambaStack>(*executor, small_config(0.25), first);
  SambaTrainer trainer(std::move(stack), Generator(GeneratorState{1, Generator::kStreams}));
  const std::string before = training_digest(trainer);
  CHECK_THAT(message_of([&] { trainer.train_step(token_array(1, 4, 11, 0), token_array(1, 4, 11, 1)); }),
             Catch::Contains("exhausted"));
  CHECK(training_digest(trainer) == before);
}

TEST_CASE("a step without a counted target has loss zero and counts") {
  const auto executor = make_executor("reference");
  const auto trainer = SambaTrainer::create(*executor, small_config(), 3);
  Array targets(DType::int32, {1, 4});
  for (auto& target : targets.values<std::int32_t>()) target = kIgnoredTarget;
  const StepResult result = trainer->train_step(token_array(1, 4, 11, 0), targets);
  CHECK(to_bits(result.loss) == 0U);
  CHECK(result.counted_targets == 0);
  CHECK(result.step == 1);
}

TEST_CASE("chunks, single tokens and clones of a state give the bits of one forward") {
  const auto executor = make_executor("cpu", {2, ""});
  Generator generator(5);
  SambaStack stack(*executor, small_config(), generator, SambaStack::Use::inference);
  const Index length = 70;
  const Array ids = token_array(2, length, 11, 9);
  const Array logits = stack.forward(ids);
  const auto tokens = ids.values<std::int32_t>();
  const auto chunk = [&](Index first, Index count) {
    Array part(DType::int32, {2, count});
    for (Index row = 0; row < 2; ++row) {
      for (Index i = 0; i < count; ++i) {
        part.values<std::int32_t>()[static_cast<std::size_t>(row * count + i)] =
            tokens[static_cast<std::size_t>(row * length + first + i)];
      }
    }
    return part;
  };
  const auto expected = [&](Index row, Index position) {
    return logits.floats().subspan(static_cast<std::size_t>((row * length + position) * 11), 11);
  };
  const auto state = stack.allocate_state(2, length);
  const Array head = stack.forward(chunk(0, 65), *state);
  for (Index row = 0; row < 2; ++row) {
    CHECK(bits_equal(head.floats().subspan(static_cast<std::size_t>(row * 65 * 11), 65 * 11),
                     logits.floats().subspan(static_cast<std::size_t>(row * length * 11), 65 * 11)));
  }
  const auto copy = state->clone();
  for (Index position = 65; position < length; ++position) {
    const Array step = stack.step(chunk(position, 1), *state);
    CHECK(bits_equal(step.floats().first(11), expected(0, position)));
    CHECK(bits_equal(step.floats().last(11), expected(1, position)));
  }
  std::vector<float> last(22);
  stack.prefill(chunk(65, 5).values<std::int32_t>(), 5, *copy, last);
  CHECK(bits_equal(std::span<const float>(last).first(11), expected(0, length - 1)));
  CHECK(bits_equal(std::span<const float>(last).last(11), expected(1, length - 1)));
  CHECK(copy->tokens() == length);
  CHECK_THAT(message_of([&] { stack.step(chunk(0, 1), *copy); }), Catch::Contains("70"));
  copy->reset();
  CHECK(copy->tokens() == 0);
  CHECK(bits_equal(stack.step(chunk(0, 1), *copy).floats().first(11), expected(0, 0)));
}

TEST_CASE("a row of a batch, and a ragged row, give the bits of the row alone") {
  const auto executor = make_executor("cpu", {1, ""});
  Generator generator(5);
  SambaStack stack(*executor, small_config(), generator);
  Array ids = token_array(3, 20, 11, 2);
  const Array all = stack.forward(ids);
  Array row(DType::int32, {1, 13});
  for (std::size_t i = 0; i < 13; ++i) row.values<std::int32_t>()[i] = ids.values<std::int32_t>()[20 + i];
  const Array alone = stack.forward(row);
  CHECK(bits_equal(all.floats().subspan(20 * 11, 13 * 11), alone.floats()));

  for (std::size_t i = 33; i < 40; ++i) ids.values<std::int32_t>()[i] = -7;  // padding may be anything
  const std::vector<Index> lengths = {20, 13, 1};
  const Array ragged = stack.forward(ids, lengths);
  CHECK(bits_equal(ragged.floats().subspan(20 * 11, 13 * 11), alone.floats()));
  CHECK(bits_equal(ragged.floats().subspan(33 * 11, 7 * 11), std::vector<float>(7 * 11, 0.0F)));
  CHECK(bits_equal(ragged.floats().subspan(41 * 11), std::vector<float>(19 * 11, 0.0F)));
}

TEST_CASE("a state whose call failed midway refuses every further call until it is reset") {
  const auto executor = make_executor("reference");
  Generator generator(5);
  SambaStack stack(*executor, small_config(), generator);
  const auto state = stack.allocate_state(1, 8);
  const Array ids = token_array(1, 2, 11, 0);
  stack.forward(ids, *state);
  const Registry& registry = stack.registry();
  float* norm = stack.mutable_device_parameters() + registry.tensors()[registry.final_norm()].offset;
  const float infinite = kInfinity, one = 1.0F;
  executor->memory().copy_to_device(norm, &infinite, sizeof infinite);
  CHECK_THAT(message_of([&] { stack.forward(ids, *state); }),
             Catch::Contains("non-finite linear input at flat index 0"));
  executor->memory().copy_to_device(norm, &one, sizeof one);
  CHECK_THAT(message_of([&] { stack.forward(ids, *state); }), Catch::Contains("not usable"));
  state->reset();
  CHECK(bits_equal(stack.forward(ids, *state).floats(), stack.forward(ids).floats()));
}

TEST_CASE("a state of another stack and ids of another type are refused") {
  const auto executor = make_executor("reference");
  Generator generator(5);
  SambaStack stack(*executor, small_config(), generator), other(*executor, tiny_attention_config(), generator);
  const auto state = other.allocate_state(1, 8);
  CHECK_THAT(message_of([&] { stack.forward(token_array(1, 2, 5, 0), *state); }),
             Catch::Contains("another configuration"));
  CHECK_THAT(message_of([&] {
               stack.forward(Array::zeros({1, 2}));
             }),
             Catch::Contains("integers") && Catch::Contains("float32"));
  Array wide(DType::int64, {1, 2});
  wide.values<std::int64_t>()[1] = std::int64_t{1} << 40;
  CHECK_THAT(message_of([&] { stack.forward(wide); }), Catch::Contains("1099511627776 at flat index 1"));
  wide.values<std::int64_t>()[1] = 3;
  Array narrow(DType::uint8, {1, 2});
  narrow.values<std::uint8_t>()[1] = 3;
  CHECK(bits_equal(stack.forward(wide).floats(), stack.forward(narrow).floats()));
}

TEST_CASE("a decode step allocates nothing") {
  const auto executor = make_executor("cpu", {1, ""});
  Generator generator(5);
  SambaStack stack(*executor, small_config(), generator, SambaStack::Use::inference);
  const auto state = stack.allocate_state(2, 200);
  std::vector<float> logits(22);
  const std::vector<std::int32_t> ids = {1, 2};
  for (int i = 0; i < 3; ++i) stack.step(ids, *state, std::span<float>(logits));
  const long before = allocations;
  for (int i = 0; i < 130; ++i) stack.step(ids, *state, std::span<float>(logits));
  CHECK(allocations - before == 0);
}

TEST_CASE("a training step allocates no device memory once its shape is known") {
  const auto executor = make_executor("cpu", {1, ""});
  const auto trainer = SambaTrainer::create(*executor, small_config(0.25), 17, clipped_and_accumulated());
  take_step(*trainer, 0);
  take_step(*trainer, 1);
  const long before = allocations;
  take_step(*trainer, 2);
  const long second = allocations;
  take_step(*trainer, 3);
  // Lists of pointers and the checked batch are all that is left: the number is the same every step, and small.
  CHECK(allocations - second == second - before);
  CHECK(allocations - second < 100);
}

TEST_CASE("gradients know no dropout without a stream, and offsets beyond the stream are refused") {
  const auto executor = make_executor("reference");
  Generator generator(5);
  SambaStack dropping(*executor, small_config(0.5), generator);
  const Array ids = token_array(1, 6, 11, 0), targets = token_array(1, 6, 11, 1);
  ConstArrayMap weights;
  const ArrayMap copies = dropping.weights();
  for (const auto& [name, array] : copies) weights[name] = array;
  SambaStack plain(*executor, small_config(), weights);
  CHECK(bits_equal(dropping.loss_and_grads(ids, targets).gradients.floats(),
                   plain.loss_and_grads(ids, targets).gradients.floats()));
  GradientOptions options;
  options.dropout = DropoutStream{5, 0};
  CHECK(to_bits(dropping.loss_and_grads(ids, targets, options).loss) != to_bits(plain.loss(ids, targets)));
  options.token_offset = (Index{1} << 31) / 32;
  CHECK_THAT(message_of([&] { dropping.loss_and_grads(ids, targets, options); }), Catch::Contains("token_offset"));
}

TEST_CASE("a configuration is read strictly, completed, and written with all ten fields") {
  const auto parse = [](const char* text) { return config_from_json(nlohmann::json::parse(text)); };
  const SambaConfig config = parse(
      R"({"vocab": 7, "d_model": 32, "layers": ["attention"], "n_heads": 4, "intermediate": 8, "norm_eps": 0.001})");
  CHECK(config.n_kv_heads == 4);
  CHECK(config.head_dim == 8);
  const nlohmann::json written = config_to_json(config);
  CHECK(written.size() == 10);
  CHECK(written["norm_eps"] == static_cast<double>(0.001F));
  CHECK(config_from_json(written, ConfigKeys::checkpoint) == config);

  CHECK_THAT(message_of([&] { parse(R"({"vocab": 7, "d_model": 32})"); }), Catch::Contains("layers is missing"));
  CHECK_THAT(message_of([&] { parse(R"({"vocab": 7.0, "d_model": 32, "layers": ["mamba3"]})"); }),
             Catch::Contains("vocab must be an integer"));
  CHECK_THAT(message_of([&] { parse(R"({"vocab": 7, "d_model": 32, "layers": ["mamba3"], "n_head": 4})"); }),
             Catch::Contains("n_head") && Catch::Contains("n_heads"));
  CHECK_THAT(message_of([&] {
               parse(R"({"vocab": 7, "d_model": 9223372036854775807, "layers": ["attention"],
                                        "n_heads": 1, "intermediate": 1, "head_dim": 9223372036854775807})");
             }),
             Catch::Contains("head_dim"));
  const SambaConfig huge = parse(R"({"vocab": 2147483647, "d_model": 32, "layers": ["mamba3"]})");
  CHECK_THAT(message_of([&] { Registry registry(huge); }), Catch::Contains("2147483647 elements"));
}
