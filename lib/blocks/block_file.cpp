// Blocks in files (docs/formats/block.md).
#include <nlohmann/json.hpp>

#include "samba/blocks/block_options.h"
#include "samba/blocks/module_core.h"
#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/formats/sealed_safetensors.h"

namespace samba {

namespace {

constexpr const char* kFormat = "samba.block.v1";

struct Header {
  std::string kind;
  nlohmann::json options;
  bool owned_weights = false;
};

Header read_header(const std::map<std::string, std::string>& metadata, const std::string& source) {
  for (const char* name : {"kind", "options", "owned_weights", "profile"}) {
    if (!metadata.contains(name)) refuse_corrupt("metadata", source + ": the metadata has no " + name);
  }
  if (metadata.size() != 4) refuse_corrupt("metadata", source + ": the metadata has unknown fields");
  Header header;
  header.kind = metadata.at("kind");
  const std::string profile = metadata.at("profile");
  const std::string_view wanted = block_profile(header.kind);
  if (profile != wanted) {
    refuse_value(source + ": the block has the arithmetic profile " + profile + ", this program has " +
                 std::string(wanted) + " for " + header.kind +
                 "; to go on with other arithmetic, read its weights as safetensors and build a block from them");
  }
  try {
    header.options = parse_json(metadata.at("options"), source + ": options");
  } catch (const Error& error) {
    refuse_corrupt("metadata", error.what());
  }
  const std::string owned = metadata.at("owned_weights");
  if (owned != "true" && owned != "false") {
    refuse_corrupt("metadata", source + ": owned_weights must be true or false, got " + owned);
  }
  header.owned_weights = owned == "true";
  return header;
}

}  // namespace

void BlockModule::save(const std::filesystem::path& path) const {
  impl_->named("save", [&] {
    const ModuleGuard guard(*impl_);
    const BoundWeights& saved = *impl_->stateless_weights();
    WeightMap values;
    for (std::size_t i = 0; i < weight_specs().size(); ++i) {
      values.emplace(weight_specs()[i].name, saved.arrays[i].download());
    }
    write_sealed_safetensors(path, kFormat, stored_arrays(values),
                             {{"kind", kind()},
                              {"options", options().dump()},
                              {"owned_weights", impl_->owned != nullptr ? "true" : "false"},
                              {"profile", std::string(profile())}});
  });
}

BlockModule BlockModule::load(Executor& executor, const std::filesystem::path& path, Use use) {
  const SafetensorsFile file = read_sealed_safetensors(path, kFormat);
  const Header header = read_header(file.metadata, path.string());
  BlockModule block = [&] {
    try {
      const ConstArrayMap stored(file.tensors.begin(), file.tensors.end());
      return BlockModule(executor, header.kind, header.options, weights_of_stored(stored), use);
    } catch (const Error& error) {
      throw Error(error.kind(), error.error_class(), path.string() + ": " + error.what());
    }
  }();
  if (header.owned_weights) block.install_owned_weights();
  return block;
}

}  // namespace samba
