// The parameter tensors of a stack in their order (spec 60 section 2; a general stack has the tensors of its blocks by
// the blocks' names, and norm_f.bias behind norm_f.weight when its final norm has a bias): the order of the flat
// buffer, of initialisation, of the optimizer, of the sum in gradient clipping and of the checkpoint.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "samba/core/array.h"
#include "samba/model/stack_config.h"

namespace samba {

struct ParameterTensor {
  std::string name;  // "layers.0.in_proj.weight"
  Shape shape;
  Index offset = 0;  // elements from the start of the flat buffer
  Index size = 0;
};

class Registry {
 public:
  // Error(value) when a tensor would have more than kMostElements, or the stack more than kMostParameters elements.
  explicit Registry(const StackConfig& config);

  static constexpr Index kMostElements = 2147483647;
  static constexpr Index kMostParameters = Index{1} << 40;

  const std::vector<ParameterTensor>& tensors() const { return tensors_; }
  Index total() const { return total_; }  // P, elements of the flat buffer
  // Index of the tensor; -1 when there is none of this name.
  Index find(std::string_view name) const;
  std::vector<Index> sizes() const;

  // The tensors of layer i are tensors()[layer_first(i)] .. [layer_first(i + 1) - 1].
  std::size_t layer_first(std::size_t layer) const { return layer_first_[layer]; }
  std::size_t final_norm() const { return layer_first_.back(); }
  // The matrix of the output head: embed.weight when tied.
  std::size_t head() const { return head_; }

  // The tensor that holds element `flat` of the buffer, as "layers.0.D[3]", for messages.
  std::string element_name(Index flat) const;

  // [{"name", "offset", "shape", "size"}, ...] as checkpoints hold it.
  nlohmann::json to_json() const;

 private:
  void add(std::string name, Shape shape);

  std::vector<ParameterTensor> tensors_;
  std::vector<std::size_t> layer_first_;
  std::size_t head_ = 0;
  Index total_ = 0;
};

}  // namespace samba
