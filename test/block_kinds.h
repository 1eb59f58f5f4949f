// One small block of every kind, for tests of what all kinds share.
#pragma once

#include <nlohmann/json.hpp>

#include "block_fixture.h"
#include "samba/blocks/block_options.h"
#include "samba/blocks/module.h"

namespace samba {

struct SmallBlock {
  std::string kind;
  nlohmann::json options;
  Index d_model;
};

inline std::vector<SmallBlock> small_blocks() {
  return {{"transformer", {{"n_heads", 2}, {"n_kv_heads", 1}}, 12},
          {"mamba1", nlohmann::json::object(), 10},
          {"mamba2", {{"dt_limit", {0.001, "inf"}}}, 32},
          {"mamba3", nlohmann::json::object(), 32}};
}

inline ArrayMap weights_of(const SmallBlock& block) {
  nlohmann::json options = block.options;
  if (block.kind == "transformer") options["intermediate"] = 10;
  return drawn_weights(block_weight_specs(block.kind, options, block.d_model));
}

inline BlockModule make_block(Executor& executor, const SmallBlock& block,
                              BlockModule::Use use = BlockModule::Use::training) {
  return BlockModule(executor, block.kind, block.options, views(weights_of(block)), use);
}

inline const SmallBlock& small_block(const std::string& kind) {
  static const std::vector<SmallBlock> all = small_blocks();
  for (const SmallBlock& block : all) {
    if (block.kind == kind) return block;
  }
  throw Error(ErrorKind::internal, "no block " + kind);
}

inline bool contains(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words) {
    if (text.find(word) == std::string::npos) {
      UNSCOPED_INFO("'" << text << "' does not say '" << word << "'");
      return false;
    }
  }
  return true;
}

inline bool same(const NamedArrays& a, const NamedArrays& b) {
  if (a.names != b.names) return false;
  for (const std::string& name : a.names) {
    if (a.arrays.at(name).shape() != b.arrays.at(name).shape()) return false;
    if (!bits_equal(a.arrays.at(name).floats(), b.arrays.at(name).floats())) return false;
  }
  return true;
}

// One thread of the cpu executor.
inline Executor& cpu() {
  static const std::unique_ptr<Executor> executor = make_executor("cpu", {.threads = 1, .instruction_set = {}});
  return *executor;
}

inline BlockModule make(const std::string& kind, BlockModule::Use use = BlockModule::Use::training) {
  return make_block(cpu(), small_block(kind), use);
}

inline Array input(const std::string& kind, Index batch = 1, Index length = 3) {
  return drawn(40, {batch, length, small_block(kind).d_model});
}

}  // namespace samba
