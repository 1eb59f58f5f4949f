#include "samba/model/initial_values.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "samba/core/error.h"

namespace samba {

namespace {

enum class Draw { normal, projection, time_step, ones };

Draw draw_of(const ParameterTensor& tensor) {
  const std::string_view name = tensor.name;
  if (name == "embed.weight" || name == "lm_head.weight") return Draw::normal;
  if (name.ends_with(".weight") && tensor.shape.size() == 2) return Draw::projection;
  if (name.ends_with(".dt_bias")) return Draw::time_step;
  return Draw::ones;
}

}  // namespace

void draw_initial_values(Executor& executor, const Registry& registry, Generator& generator, float* parameters) {
  Generator ahead = generator;
  std::vector<float> ones;
  for (const ParameterTensor& tensor : registry.tensors()) {
    float* values = parameters + tensor.offset;
    switch (draw_of(tensor)) {
      case Draw::normal:
        executor.random().normal(ahead.seed(), ahead.next_stream(), tensor.size, 0.0F, 0.02F, values);
        break;
      case Draw::projection: {
        const float bound = kaiming_uniform_bound(tensor.shape[1]);
        executor.random().uniform(ahead.seed(), ahead.next_stream(), tensor.size, -bound, bound, values);
        break;
      }
      case Draw::time_step:
        executor.random().uniform(ahead.seed(), ahead.next_stream(), tensor.size, -4.0F, -2.0F, values);
        break;
      case Draw::ones:
        ones.assign(static_cast<std::size_t>(tensor.size), 1.0F);
        executor.memory().copy_to_device(values, ones.data(), ones.size() * sizeof(float));
        break;
    }
  }
  generator = ahead;
}

}  // namespace samba
