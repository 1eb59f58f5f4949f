// The small MLP against its double-precision twin (double_twins/mlp.h): logits, loss, gradients by central differences,
// and the parameters after steps of AdamW. Bounds as in double_twin_forward_test.cpp.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "block_fixture.h"
#include "double_twins/mlp.h"
#include "double_twins/slopes.h"
#include "samba/train/mlp_trainer.h"

namespace samba {
namespace {

using twin::Doubles;
using twin::Tensors;
using twin::to_doubles;

constexpr double kBound = 8.0;

ArrayMap drawn_mlp() {
  ArrayMap weights;
  for (const MlpTensor& tensor : mlp_tensors()) {
    const float deviation = tensor.shape.size() == 1 ? 0.3F : 1.3F / std::sqrt(static_cast<float>(tensor.shape[1]));
    weights.emplace(tensor.name,
                    drawn(600 + static_cast<std::uint32_t>(weights.size()), tensor.shape, 0.0F, deviation));
  }
  return weights;
}

struct Batch {
  explicit Batch(Index rows, std::uint32_t stream = 610)
      : x(drawn(stream, {rows, kMlpFeatures})), ids(DType::int32, {rows}) {
    for (Index i = 0; i < rows; ++i) {
      targets.push_back(static_cast<std::int32_t>((i * i + stream) % kMlpClasses));
    }
    std::copy(targets.begin(), targets.end(), ids.values<std::int32_t>().begin());
  }

  Array x;
  std::vector<std::int32_t> targets;
  Array ids;
};

}  // namespace

TEST_CASE("The logits, loss and gradients of the small MLP are those of its double-precision twin") {
  for (const auto& executor : every_executor()) {
    for (const Index rows : {3, 10, 200}) {
      INFO(rows << " rows on " << executor->name() << " " << executor->instruction_set());
      const ArrayMap weights = drawn_mlp();
      const Batch batch(rows);
      MlpTrainer trainer(*executor, views(weights), {{"name", "twin"}});
      const MlpGradients result = trainer.loss_and_grads(batch.x, batch.ids, true);

      Tensors values = to_doubles(weights);
      Doubles x = to_doubles(batch.x.floats());
      const Doubles want = twin::mlp_logits(values, x);
      CHECK(distance(result.logits.floats(), std::span<const double>(want), 16) <= kBound);
      const auto loss = [&] { return twin::mean_cross_entropy(twin::mlp_logits(values, x), batch.targets); };
      // A loss is a difference of numbers as large as the logits.
      CHECK(std::abs(static_cast<double>(result.loss) - loss()) <=
            kBound * kRounding * largest(std::span<const double>(want)));

      const auto chain = static_cast<std::size_t>(std::max<Index>(rows, 16));
      for (const auto& [name, gradient] : result.gradients) {
        twin::check_slopes(loss, values.at(name), gradient.floats(), chain, kBound, name);
      }
      twin::check_slopes(loss, x, result.x->floats(), chain, kBound, "x");
    }
  }
}

TEST_CASE("Steps of the small MLP follow AdamW in double precision") {
  const auto executor = make_executor("cpu");
  const ArrayMap weights = drawn_mlp();
  OptimizerSettings settings;
  settings.lr = 0.01F;
  settings.weight_decay = 0.1F;
  MlpTrainer trainer(*executor, views(weights), {{"name", "twin"}}, settings);
  const twin::AdamW rule = {settings.lr, settings.beta1, settings.beta2, settings.eps, settings.weight_decay};
  Tensors values = to_doubles(weights), m, v;
  for (int step = 1; step <= 5; ++step) {
    // The trainer's own gradients: near 0 the quotient of the moments would magnify a difference of gradients.
    const MlpStep done = trainer.train_step(Batch(10, 620).x, Batch(10, 620).ids);
    for (const auto& [name, gradient] : done.before.gradients) {
      m[name].resize(values.at(name).size());
      v[name].resize(values.at(name).size());
      for (std::size_t i = 0; i < values.at(name).size(); ++i) {
        rule.update(values.at(name)[i], gradient.floats()[i], m.at(name)[i], v.at(name)[i], step);
      }
    }
    for (const auto& [name, array] : trainer.weights()) {
      INFO("step " << step << ' ' << name);
      // A step rounds the parameter twice, and the update, which is a hundredth of it, some times more.
      CHECK(distance(array.floats(), std::span<const double>(values.at(name)), 1) <= 3.0 * step);
    }
  }
}

}  // namespace samba
