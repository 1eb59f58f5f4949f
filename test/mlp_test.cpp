// The small MLP (spec 50 part B): what it takes, what it refuses, and that a step is atomic. The bits are those of the
// recorded cases (golden_mlp_test.cpp).
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <optional>

#include "error_of.h"
#include "samba/backends/registry.h"
#include "samba/blocks/functional.h"
#include "samba/core/error.h"
#include "samba/formats/canonical_json.h"
#include "samba/model/mlp_inference.h"
#include "samba/numerics/float32.h"
#include "samba/numerics/generator.h"
#include "samba/train/mlp_checkpoint.h"
#include "samba/train/mlp_trainer.h"

namespace samba {
namespace {

using Catch::Matchers::Contains;

const nlohmann::json kSchedule = {{"a", 1}};

ArrayMap drawn_weights() { return mlp_arrays(draw_mlp_values(7)); }

Array rows_of(Index rows, float scale = 1.0F) {
  Array x = Array::zeros({rows, kMlpFeatures});
  for (std::size_t i = 0; i < x.floats().size(); ++i) {
    x.floats()[i] = scale * (static_cast<float>((i * 37) % 19) / 9.0F - 1.0F);
  }
  return x;
}

Array classes_of(Index rows) {
  Array classes(DType::int32, {rows});
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows); ++i) {
    classes.values<std::int32_t>()[i] = static_cast<std::int32_t>(i % 3);
  }
  return classes;
}

Array part_of(const Array& x, Index first, Index end) {
  const auto width = static_cast<std::size_t>(kMlpFeatures);
  return Array::from_floats(
      {end - first, kMlpFeatures},
      x.floats().subspan(static_cast<std::size_t>(first) * width, static_cast<std::size_t>(end - first) * width));
}

std::string bytes_of(const MlpTrainer& trainer) { return mlp_checkpoint_bytes(trainer.state()); }

}  // namespace

TEST_CASE("weights of another type, shape or value are refused by name") {
  const auto executor = make_executor("cpu");
  const auto message = [&](ErrorKind kind, const std::string& name, Array value) {
    ArrayMap weights = drawn_weights();
    weights[name] = std::move(value);
    const std::string inference = message_of(kind, [&] { MlpInference(*executor, weights); });
    CHECK(message_of(kind, [&] { MlpTrainer(*executor, weights, kSchedule); }) == inference);
    return inference;
  };
  CHECK_THAT(message(ErrorKind::type, "weight1", Array(DType::float64, {16, 8})),
             Contains("weight1 must be a float32 array"));
  CHECK_THAT(message(ErrorKind::value, "bias2", Array::zeros({4})), Contains("bias2 must have shape (3,), got (4,)"));
  Array bad = Array::zeros({3, 16});
  bad.floats()[47] = std::numeric_limits<float>::infinity();
  CHECK_THAT(message(ErrorKind::value, "weight2", bad), Contains("weight2 must be finite"));
  CHECK_THAT(message(ErrorKind::value, "weight3", Array::zeros({1})), Contains("weight3 is none of weight1"));
  ArrayMap missing = drawn_weights();
  missing.erase("bias1");
  CHECK_THAT(message_of(ErrorKind::value, [&] { MlpInference(*executor, missing); }), Contains("bias1 is missing"));
}

TEST_CASE("an input of another type, shape, size or value is refused") {
  const auto executor = make_executor("cpu");
  MlpInference model(*executor, drawn_weights());
  const auto message = [&](ErrorKind kind, const ConstArray& x) {
    return message_of(kind, [&] { model.predict_logits(x); });
  };
  CHECK_THAT(message(ErrorKind::type, Array(DType::float64, {2, 8})), Contains("X must be a float32 array"));
  CHECK_THAT(message(ErrorKind::value, Array::zeros({8})), Contains("X must have shape (batch, 8), got (8,)"));
  CHECK_THAT(message(ErrorKind::value, Array::zeros({2, 7})), Contains("X must have shape (batch, 8)"));
  CHECK_THAT(message(ErrorKind::value, Array::zeros({0, 8})), Contains("batch must be in [1, 256], got 0"));
  CHECK_THAT(message(ErrorKind::value, Array::zeros({257, 8})), Contains("batch must be in [1, 256], got 257"));
  Array bad = rows_of(3);
  bad.floats()[17] = std::numeric_limits<float>::quiet_NaN();
  CHECK_THAT(message(ErrorKind::value, bad), Contains("X must be finite, got NaN in row 2, feature 1"));
  CHECK_NOTHROW(model.predict_logits(rows_of(256)));
}

TEST_CASE("targets are integers of any integer type, one a row, 0 to 2") {
  const auto executor = make_executor("cpu");
  const Array x = rows_of(4);
  MlpTrainer trainer(*executor, drawn_weights(), kSchedule);
  const float loss = trainer.loss_and_grads(x, classes_of(4)).loss;
  const auto with = [&](DType dtype, auto sample) {
    Array targets(dtype, {4});
    for (std::size_t i = 0; i < 4; ++i) targets.values<decltype(sample)>()[i] = static_cast<decltype(sample)>(i % 3);
    return trainer.loss_and_grads(x, targets).loss;
  };
  CHECK(with(DType::int64, std::int64_t{}) == loss);
  CHECK(with(DType::int8, std::int8_t{}) == loss);
  CHECK(with(DType::uint8, std::uint8_t{}) == loss);
  CHECK(with(DType::uint16, std::uint16_t{}) == loss);
  const auto message = [&](ErrorKind kind, const ConstArray& targets) {
    return message_of(kind, [&] { trainer.loss_and_grads(x, targets); });
  };
  CHECK_THAT(message(ErrorKind::type, Array::zeros({4})), Contains("targets must be an integer array, got float32"));
  CHECK_THAT(message(ErrorKind::value, classes_of(3)),
             Contains("targets must have shape (batch,) with classes 0..2, got the shape (3,)"));
  for (const std::int32_t bad : {3, -1, -100}) {
    Array targets = classes_of(4);
    targets.values<std::int32_t>()[2] = bad;
    CHECK_THAT(message(ErrorKind::value, targets), Contains("with classes 0..2") && Contains("in row 2"));
  }
}

TEST_CASE("a row has the bits it has alone, in any batch and in sessions") {
  for (const char* device : {"reference", "cpu"}) {
    const auto executor = make_executor(device);
    MlpInference model(*executor, drawn_weights());
    MlpTrainer trainer(*executor, drawn_weights(), kSchedule);
    const Array x = rows_of(200);
    const Array logits = model.predict_logits(x);
    for (const Index row : {0, 1, 128, 199}) {
      const Array alone = model.predict_logits(part_of(x, row, row + 1));
      for (std::size_t c = 0; c < 3; ++c) {
        CHECK(to_bits(alone.floats()[c]) == to_bits(logits.floats()[static_cast<std::size_t>(row) * 3 + c]));
      }
    }
    const Array first = part_of(x, 0, 70), second = part_of(x, 70, 200);
    const ConstArray batches[] = {first, second};
    for (const Array& joined : {model.predict_logits_sessions(batches), trainer.predict_logits_sessions(batches),
                                trainer.predict_logits(x)}) {
      REQUIRE(joined.shape() == Shape{200, 3});
      CHECK(std::equal(joined.floats().begin(), joined.floats().end(), logits.floats().begin()));
    }
    const ArrayMap w = drawn_weights();
    const Array free =
        functional::mlp_logits(*executor, x, w.at("weight1"), w.at("bias1"), w.at("weight2"), w.at("bias2"));
    CHECK(std::equal(free.floats().begin(), free.floats().end(), logits.floats().begin()));
  }
}

TEST_CASE("packed weights predict with the bits of their expansion; the trainer refuses them") {
  const auto executor = make_executor("cpu");
  const ArrayMap weights = drawn_weights();
  const Array x = rows_of(9);
  for (const WeightFormat format : {WeightFormat::bfloat16, WeightFormat::int8}) {
    const WeightMap packed = pack(weights, format);
    MlpInference model(*executor, packed);
    MlpInference expanded(*executor, expand(packed));
    CHECK(model.weight_format() == format);
    CHECK(expanded.weight_format() == WeightFormat::float32);
    const Array a = model.predict_logits(x), b = expanded.predict_logits(x);
    CHECK(std::equal(a.floats().begin(), a.floats().end(), b.floats().begin()));
    CHECK_THAT(message_of(ErrorKind::type, [&] { MlpTrainer(*executor, packed, kSchedule); }),
               Contains("weight1 must be a float32 array"));
    // A packed matrix does not fit a bias.
    WeightMap odd = pack(weights, WeightFormat::float32);
    odd.insert_or_assign("bias1", packed.at("weight1"));
    CHECK_THAT(message_of(ErrorKind::type, [&] { MlpInference(*executor, odd); }),
               Contains("bias1 must be a float32 array"));
  }
  WeightMap mixed = pack(weights, WeightFormat::bfloat16);
  mixed.insert_or_assign("weight2", pack(weights, WeightFormat::int8).at("weight2"));
  CHECK_THAT(message_of(ErrorKind::value, [&] { MlpInference(*executor, mixed); }), Contains("weights mix formats"));
}

TEST_CASE("a value that is not finite is refused, also one that the ReLU would hide, and nothing has changed") {
  for (const char* device : {"reference", "cpu"}) {
    const auto executor = make_executor(device);
    ArrayMap weights = drawn_weights();
    for (float& value : weights["weight1"].floats()) value = -3e38F;
    MlpTrainer trainer(*executor, weights, kSchedule);
    const std::string before = bytes_of(trainer);
    Array ones = Array::zeros({2, 8});
    for (float& value : ones.floats()) value = 2.0F;
    CHECK_THAT(message_of(ErrorKind::value, [&] { trainer.train_step(ones, classes_of(2)); }),
               Contains("nonfinite: the first projection is not finite"));
    CHECK_THAT(message_of(ErrorKind::value, [&] { trainer.predict_logits(ones); }), Contains("nonfinite"));
    CHECK(bytes_of(trainer) == before);

    // A gradient that is finite, a new moment v that is not: g * g overflows.
    MlpTrainer large(*executor, drawn_weights(), kSchedule);
    const std::string start = bytes_of(large);
    ArrayMap gradients = drawn_weights();
    gradients["bias2"].floats()[1] = 3e38F;
    ConstArrayMap views;
    for (const auto& [name, array] : gradients) views.emplace(name, array.view());
    CHECK_THAT(message_of(ErrorKind::value, [&] { large.apply_gradients(views); }),
               Contains("a new moment v is not finite"));
    CHECK(large.completed_steps() == 0);
    CHECK(bytes_of(large) == start);
  }
}

TEST_CASE("apply_gradients takes exactly four finite gradients of the parameters' shapes") {
  const auto executor = make_executor("cpu");
  MlpTrainer trainer(*executor, drawn_weights(), kSchedule);
  const auto message = [&](ErrorKind kind, const std::string& name, std::optional<Array> value) {
    const ArrayMap gradients = drawn_weights();
    ConstArrayMap views;
    for (const auto& [key, array] : gradients) views.emplace(key, array.view());
    if (value) {
      views[name] = value->view();
    } else {
      views.erase(name);
    }
    return message_of(kind, [&] { trainer.apply_gradients(views); });
  };
  CHECK_THAT(message(ErrorKind::value, "bias1", std::nullopt), Contains("requires exactly four gradients, got 3"));
  CHECK_THAT(message(ErrorKind::value, "x", Array::zeros({2, 8})), Contains("requires exactly four gradients, got 5"));
  CHECK_THAT(message(ErrorKind::value, "bias1", Array::zeros({3})), Contains("bias1 gradient must have shape (16,)"));
  CHECK_THAT(message(ErrorKind::type, "bias1", Array(DType::int32, {16})),
             Contains("bias1 gradient must be a float32 array"));
  Array bad = Array::zeros({16});
  bad.floats()[0] = std::numeric_limits<float>::quiet_NaN();
  CHECK_THAT(message(ErrorKind::value, "bias1", bad), Contains("bias1 gradient must be finite"));
  CHECK(trainer.completed_steps() == 0);
}

TEST_CASE("the step counter stops at 2^31 - 1") {
  const auto executor = make_executor("cpu");
  MlpTrainer trainer(*executor, drawn_weights(), kSchedule);
  MlpState state = trainer.state();
  state.step = kMlpMostSteps - 1;
  trainer.load_state(state);
  CHECK(trainer.train_step(rows_of(3), classes_of(3)).step == kMlpMostSteps);
  const std::string before = bytes_of(trainer);
  CHECK_THAT(message_of(ErrorKind::value, [&] { trainer.train_step(rows_of(3), classes_of(3)); }),
             Contains("step counter is exhausted"));
  CHECK(bytes_of(trainer) == before);
  state.step = kMlpMostSteps + 1;
  CHECK_THAT(message_of(ErrorKind::value, [&] { trainer.load_state(state); }), Contains("outside its supported range"));
  CHECK(bytes_of(trainer) == before);
}

TEST_CASE("hyperparameters are rounded to float32 and then checked") {
  const auto with = [](auto&& set) {
    OptimizerSettings settings;
    set(settings);
    return message_of(ErrorKind::value, [&] { rounded_mlp_settings(settings); });
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_THAT(with([&](auto& s) { s.lr = nan; }), Contains("lr must be finite float32"));
  CHECK_THAT(with([](auto& s) { s.weight_decay = 1e300; }), Contains("weight_decay must be finite float32"));
  const char* const positive = "requires lr > 0, eps > 0 and weight_decay >= 0";
  CHECK_THAT(with([](auto& s) { s.lr = 0.0; }), Contains(positive));
  CHECK_THAT(with([](auto& s) { s.lr = 1e-50; }), Contains(positive));  // 0 in float32
  CHECK_THAT(with([](auto& s) { s.eps = -1e-8; }), Contains(positive));
  CHECK_THAT(with([](auto& s) { s.weight_decay = -0.5; }), Contains(positive));
  const char* const betas = "betas must remain in [0, 1) in float32";
  CHECK_THAT(with([](auto& s) { s.beta1 = 1.0; }), Contains(betas));
  CHECK_THAT(with([](auto& s) { s.beta2 = 0.99999999; }), Contains(betas));  // 1 in float32
  CHECK_THAT(with([](auto& s) { s.beta1 = -0.1; }), Contains(betas));
  CHECK(with([](auto& s) { s.lr = s.eps = 1e-40; }) == "accepted");  // subnormal
  CHECK(with([](auto& s) { s.beta1 = s.beta2 = s.weight_decay = 0.0; }) == "accepted");
  OptimizerSettings settings;
  CHECK(rounded_mlp_settings(settings).lr == static_cast<double>(0.001F));
  settings.max_norm = 1.0;
  CHECK_THAT(message_of(ErrorKind::unsupported, [&] { rounded_mlp_settings(settings); }), Contains("without clipping"));
}

TEST_CASE("a data_schedule is a nonempty JSON object of bounded size") {
  const auto message = [](const std::string& text) {
    return message_of(ErrorKind::value, [&] { check_data_schedule(parse_data_schedule(text)); });
  };
  const auto list = [](std::size_t count) {
    std::string text = "[";
    for (std::size_t i = 0; i < count; ++i) text += i == 0 ? "0" : ",0";
    return text + "]";
  };
  const auto nested = [](std::size_t depth, const std::string& inside) {
    return "{\"a\":" + std::string(depth, '[') + inside + std::string(depth, ']') + "}";
  };
  const std::string power_4096 = [] {  // 2^4096
    std::string digits = "1";
    for (int i = 0; i < 4096; ++i) {
      int carry = 0;
      for (std::size_t at = digits.size(); at-- > 0;) {
        carry += 2 * (digits[at] - '0');
        digits[at] = static_cast<char>('0' + carry % 10);
        carry /= 10;
      }
      if (carry > 0) digits.insert(digits.begin(), static_cast<char>('0' + carry));
    }
    return digits;
  }();
  std::string below = power_4096;
  --below.back();  // 2^4096 ends with 6
  for (const char* text : {"{}", "[1]", "true", "null", "\"a\""}) {
    CHECK_THAT(message(text), Contains("data_schedule must be a nonempty JSON object"));
  }
  CHECK(message("{\"a\":" + list(126) + "}") == "accepted");
  CHECK_THAT(message("{\"a\":" + list(127) + "}"), Contains("too complex"));
  CHECK(message(nested(7, "1")) == "accepted");
  CHECK_THAT(message(nested(8, "1")), Contains("too complex"));
  CHECK(message(nested(8, "")) == "accepted");
  CHECK_THAT(message(nested(9, "")), Contains("too complex"));
  CHECK(message("{\"a\":" + below + "}") == "accepted");
  CHECK(message("{\"a\":-" + below + "}") == "accepted");
  CHECK_THAT(message("{\"a\":" + power_4096 + "}"), Contains("integer is too large"));
  CHECK(message("{\"a\":\"" + std::string(2040, 'x') + "\"}") == "accepted");
  CHECK_THAT(message("{\"a\":\"" + std::string(2041, 'x') + "\"}"), Contains("exceeds 2048 bytes"));
  CHECK_THAT(message("{\"a\":\"" + std::string(2048, 'x') + "\"}"), Contains("exceeds 2048 bytes"));
  CHECK_THAT(message("{\"a\":\"" + std::string(2049, 'x') + "\"}"), Contains("string is too large"));
  CHECK_THAT(message("{\"" + std::string(2049, 'x') + "\":1}"), Contains("string is too large"));
  CHECK(message("{\"a\":\"\\ud800\"}") == "accepted");
  CHECK_THAT(message("{\"a\":1,\"a\":2}"), Contains("data_schedule is not JSON"));
  CHECK_THAT(message("{\"a\":NaN}"), Contains("data_schedule is not JSON"));
}

TEST_CASE("initial values are kaiming_uniform weights and uniform biases from the streams 0 to 3") {
  const std::vector<float> values = draw_mlp_values(7);
  Generator generator(7);
  std::vector<float> part(128);
  generator.kaiming_uniform(part, 8);
  CHECK(std::equal(part.begin(), part.end(), values.begin()));
  part.resize(16);
  generator.uniform(part, -1.0 / std::sqrt(8.0), 1.0 / std::sqrt(8.0));
  CHECK(std::equal(part.begin(), part.end(), values.begin() + 128));
  part.resize(48);
  generator.kaiming_uniform(part, 16);
  CHECK(std::equal(part.begin(), part.end(), values.begin() + 144));
  part.resize(3);
  generator.uniform(part, -0.25, 0.25);
  CHECK(std::equal(part.begin(), part.end(), values.begin() + 192));
  CHECK(generator.counter() == 4);
}

TEST_CASE("training goes on with the same bits from a saved state, on the reference as on the cpu") {
  const auto cpu = make_executor("cpu");
  const auto reference = make_executor("reference");
  MlpTrainer whole(*cpu, drawn_weights(), kSchedule);
  MlpTrainer first(*reference, drawn_weights(), kSchedule);
  for (const Index rows : {3, 256, 129, 40}) whole.train_step(rows_of(rows), classes_of(rows));
  for (const Index rows : {3, 256}) first.train_step(rows_of(rows), classes_of(rows));
  MlpTrainer second(*cpu, parse_mlp_checkpoint(bytes_of(first)));
  for (const Index rows : {129, 40}) second.train_step(rows_of(rows), classes_of(rows));
  CHECK(bytes_of(second) == bytes_of(whole));
  CHECK(second.completed_steps() == 4);
}

}  // namespace samba
