// The numeric modes: what each of them promises, and what is refused so that a value of one mode never passes for a
// value of another (docs/numeric_modes.md).
#include "samba/core/numeric_mode.h"

#include <catch2/catch.hpp>

#include "block_fixture.h"
#include "closeness.h"
#include "error_of.h"
#include "samba/blocks/block_options.h"
#include "samba/blocks/module.h"
#include "samba/model/mlp_inference.h"
#include "samba/numerics/generator.h"
#include "samba/train/checkpoint.h"
#include "samba/train/stored_model.h"
#include "samba/verify/verify.h"
#include "small_stack.h"
#include "temporary_folder.h"

using namespace samba;
using Catch::Contains;

namespace {

std::unique_ptr<Executor> executor_of(NumericMode mode, int threads = 2) {
  return make_executor("cpu", {.threads = threads, .instruction_set = "", .numeric_mode = mode});
}

// y = x W^T of drawn values, prepared and multiplied by an executor.
std::vector<float> product(Executor& executor, Index m, Index n, Index k, Index shift = 0) {
  const Array x = drawn(1, {m, k}), w = drawn(2, {n, k});
  DeviceArray<float> device_x(executor.memory(), m * k + shift), device_w(executor.memory(), n * k),
      y(executor.memory(), m * n);
  executor.memory().copy_to_device(device_x.data() + shift, x.data(), x.byte_size());
  device_w.upload(w.floats().data());
  const auto prepared = executor.linear().prepare(n, k, device_w.data());
  executor.linear().linear(*prepared, m, device_x.data() + shift, y.data());
  std::vector<float> values(static_cast<std::size_t>(m * n));
  y.download(values.data());
  return values;
}

// The same by a layout of the general product.
std::vector<float> general_product(Executor& executor, Layout layout, Index m, Index n, Index k) {
  const Array a = drawn(1, {m, k}), b = drawn(2, {n, k});
  DeviceArray<float> device_a(executor.memory(), m * k), device_b(executor.memory(), n * k),
      c(executor.memory(), m * n);
  device_a.upload(a.floats().data());
  device_b.upload(b.floats().data());
  executor.linear().gemm(layout, m, n, k, device_a.data(), device_b.data(), c.data());
  std::vector<float> values(static_cast<std::size_t>(m * n));
  c.download(values.data());
  return values;
}

constexpr NumericMode kRelaxed[] = {NumericMode::deterministic, NumericMode::fast};

}  // namespace

TEST_CASE("a mode has a name, and another name is refused with the list") {
  for (const char* name : {"identical", "deterministic", "fast"}) {
    CHECK(numeric_mode_name(parse_numeric_mode(name)) == name);
  }
  CHECK_THAT(message_of(ErrorKind::value, [] { parse_numeric_mode("quick"); }),
             Contains("'quick'") && Contains("identical, deterministic, fast"));
}

TEST_CASE("an executor tells its mode; the reference has identical alone") {
  CHECK(make_executor("reference")->numeric_mode() == NumericMode::identical);
  CHECK(make_executor("cpu")->numeric_mode() == NumericMode::identical);
  for (const NumericMode mode : kRelaxed) {
    CHECK(executor_of(mode)->numeric_mode() == mode);
    CHECK_THAT(
        message_of(ErrorKind::unsupported,
                   [&] { make_executor("reference", {.threads = 1, .instruction_set = "", .numeric_mode = mode}); }),
        Contains(std::string(numeric_mode_name(mode))) && Contains("accepted: identical"));
  }
}

TEST_CASE("products of the other modes are near those of identical") {
  const auto identical = executor_of(NumericMode::identical);
  for (const NumericMode mode : kRelaxed) {
    const auto executor = executor_of(mode);
    for (const auto& [m, n, k] : {std::array<Index, 3>{1, 700, 300}, {3, 65, 1}, {40, 520, 257}, {17, 1, 30}}) {
      CAPTURE(numeric_mode_name(mode), m, n, k);
      const auto near = [&](const std::vector<float>& got, const std::vector<float>& want) {
        CHECK(distance(std::span(got), std::span(want), static_cast<std::size_t>(k)) < 2.0);
      };
      near(product(*executor, m, n, k), product(*identical, m, n, k));
      for (const Layout layout : {Layout::nn, Layout::nt, Layout::tn}) {
        near(general_product(*executor, layout, m, n, k), general_product(*identical, layout, m, n, k));
      }
    }
  }
}

TEST_CASE("deterministic: the same bits for the same product, whatever the threads and the place of its operands") {
  for (const auto& [m, n, k] : {std::array<Index, 3>{1, 1100, 300}, {5, 700, 384}, {130, 520, 513}}) {
    CAPTURE(m, n, k);
    const std::vector<float> once = product(*executor_of(NumericMode::deterministic, 1), m, n, k);
    for (const int threads : {1, 2, 3}) {
      const auto executor = executor_of(NumericMode::deterministic, threads);
      for (const Index shift : {0, 1, 5}) CHECK(product(*executor, m, n, k, shift) == once);
    }
  }
}

TEST_CASE("blocks: no gradient in deterministic, no tape in either, no state of another mode") {
  const nlohmann::json options = {{"n_heads", 2}, {"n_kv_heads", 2}};
  const auto specs = block_weight_specs("transformer", {{"n_heads", 2}, {"n_kv_heads", 2}, {"intermediate", 24}}, 16);
  const ArrayMap weights = drawn_weights(specs);
  const Array x = drawn(9, {1, 3, 16});
  const auto identical = executor_of(NumericMode::identical);
  BlockModule one(*identical, "transformer", options, views(weights));
  for (const NumericMode mode : kRelaxed) {
    const auto executor = executor_of(mode);
    BlockModule block(*executor, "transformer", options, views(weights));
    CHECK(distance(std::span<const float>(block.forward(x).floats()), std::span<const float>(one.forward(x).floats()),
                   64) < 4.0);
    CHECK_THAT(message_of(ErrorKind::unsupported, [&] { block.forward_with_tape(x); }),
               Contains("tape") && Contains(std::string(numeric_mode_name(mode))) && Contains("accepted: identical"));
    const auto state = block.allocate_state(1, 8);
    block.forward(x, *state);
    CHECK(message_of(ErrorKind::value, [&] { one.forward(x, *state); }) != "accepted");
    CHECK(message_of(ErrorKind::value, [&] { one.open_session(*state); }) != "accepted");
    if (mode == NumericMode::fast) {
      CHECK(block.backward(x, x).arrays.at("x").shape() == x.shape());
    } else {
      CHECK_THAT(message_of(ErrorKind::unsupported, [&] { block.backward(x, x); }),
                 Contains("deterministic") && Contains("identical and fast"));
    }
  }
}

TEST_CASE("stacks: a state of another mode is refused, and so is a gradient in deterministic") {
  const auto identical = executor_of(NumericMode::identical);
  Generator generator(1);
  SambaStack one(*identical, small_config(), generator);
  const Array ids = token_array(2, 6, 11, 0);
  for (const NumericMode mode : kRelaxed) {
    const auto executor = executor_of(mode);
    SambaStack other(*executor, small_config(), ConstWeightMap(one.weights()));
    CHECK(distance(std::span<const float>(other.forward(ids).floats()),
                   std::span<const float>(one.forward(ids).floats()), 256) < 8.0);
    const auto state = other.allocate_state(2, 16);
    CHECK(state->numeric_mode() == mode);
    other.forward(ids, *state);
    CHECK_THAT(message_of(ErrorKind::value, [&] { one.forward(ids, *state); }),
               Contains("numeric mode " + std::string(numeric_mode_name(mode))) && Contains("identical"));
    const auto mine = one.allocate_state(2, 16);
    CHECK_THAT(message_of(ErrorKind::value, [&] { other.forward(ids, *mine); }), Contains("numeric mode identical"));
    CHECK(mine->tokens() == 0);
  }
  const auto deterministic = executor_of(NumericMode::deterministic);
  SambaStack frozen(*deterministic, small_config(), ConstWeightMap(one.weights()));
  CHECK_THAT(message_of(ErrorKind::unsupported, [&] { frozen.loss_and_grads(ids, ids); }), Contains("deterministic"));
  CHECK_THAT(message_of(ErrorKind::unsupported, [&] { SambaTrainer::create(*deterministic, small_config(), 1); }),
             Contains("deterministic is forward only"));
}

TEST_CASE("a run in fast never makes a file that says identical, and goes on in fast alone") {
  const TemporaryFolder folder;
  const auto fast = executor_of(NumericMode::fast), identical = executor_of(NumericMode::identical);
  const Array ids = token_array(2, 16, 11, 0);
  auto trainer = SambaTrainer::create(*fast, small_config(), 7);
  trainer->train_step(ids, token_array(2, 16, 11, 1));
  save_checkpoint(*trainer, folder / "fast.samba");
  const StoredModel stored = read_model(folder / "fast.samba", Reading::everything);
  CHECK(stored.form == ModelForm::stack_archive);
  CHECK(stored.state.numeric_mode == "fast");
  CHECK(stored.trainable);
  // Neither does another form made of it.
  CHECK(file_form(stored) == ModelForm::stack_archive);

  const auto again = load_for_training(*fast, folder / "fast.samba");
  CHECK(training_digest(*again) == training_digest(*trainer));
  CHECK_THAT(message_of(ErrorKind::value, [&] { load_for_training(*identical, folder / "fast.samba"); }),
             Contains("trained in the numeric mode fast") && Contains("--numeric-mode fast"));
  CHECK(load_for_inference(*identical, folder / "fast.samba")->parameters_sha256() ==
        trainer->stack().parameters_sha256());

  auto exact = SambaTrainer::create(*identical, small_config(), 7);
  exact->train_step(ids, token_array(2, 16, 11, 1));
  save_checkpoint(*exact, folder / "identical.samba");
  CHECK(read_model(folder / "identical.samba", Reading::inference).form == ModelForm::samba_archive);
  CHECK_THAT(message_of(ErrorKind::value, [&] { load_for_training(*fast, folder / "identical.samba"); }),
             Contains("trained in the numeric mode identical") && Contains("this run is fast"));
}

TEST_CASE("recorded cases and the small MLP know identical only") {
  const std::filesystem::path cases[] = {std::filesystem::path(SAMBA_GOLDEN_DIR) / "core/linear_5x7x9.safetensors"};
  for (const NumericMode mode : kRelaxed) {
    const auto executor = executor_of(mode);
    CHECK_THAT(message_of(ErrorKind::unsupported, [&] { verify::verify_cases(*executor, cases); }),
               Contains("recorded cases know the numeric mode identical only"));
    const std::vector<float> values = draw_mlp_values(1);
    CHECK_THAT(message_of(ErrorKind::unsupported, [&] { SmallMlp network(*executor); }), Contains("identical only"));
  }
}
