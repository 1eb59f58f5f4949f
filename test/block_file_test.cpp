// Blocks in files: docs/formats/block.md.
#include <catch2/catch.hpp>
#include <fstream>

#include "block_kinds.h"
#include "samba/core/files.h"
#include "samba/core/sha256.h"
#include "samba/formats/safetensors.h"
#include "samba/formats/sealed_safetensors.h"
#include "temporary_folder.h"

namespace samba {
namespace {

// The class of an Error(corrupt), or the words of another refusal.
template <class Call>
std::string corrupt_class(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.kind() == ErrorKind::corrupt ? error.error_class() : error.what();
  }
  return "loads";
}

std::string load_class(const Path& path) {
  return corrupt_class([&] { BlockModule::load(cpu(), path); });
}

void save_as(const Path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

}  // namespace

TEST_CASE("A loaded block is the very same block") {
  const TemporaryFolder folder;
  std::vector<SmallBlock> blocks = small_blocks();
  blocks.push_back({"transformer", {{"n_heads", 2}, {"numeric_profile", "fixed15_v1"}, {"mlp", "gelu"}}, 12});
  blocks.push_back({"transformer",
                    {{"n_heads", 2},
                     {"n_kv_heads", 1},
                     {"window", 3},
                     {"rope_theta", 12345.678},
                     {"rope_dim", 4},
                     {"rope_scaling",
                      {{"type", "llama3"},
                       {"factor", 8.1},
                       {"low_freq_factor", 1.1},
                       {"high_freq_factor", 4.3},
                       {"original_max_position_embeddings", 64}}},
                     {"norm_eps", 1e-5},
                     {"mlp", "geglu"},
                     {"qkv_bias", true},
                     {"attn_softcap", 20.3}},
                    12});
  for (const SmallBlock& small : blocks) {
    INFO(small.kind);
    BlockModule block = make_block(cpu(), small);
    const Path path = folder / (small.kind + ".safetensors");
    block.save(path);
    BlockModule loaded = BlockModule::load(cpu(), path);
    CHECK(loaded.kind() == block.kind());
    CHECK(loaded.options() == block.options());
    CHECK(loaded.class_name() == block.class_name());
    for (const WeightSpec& spec : block.weight_specs()) {
      CHECK(loaded.weight(spec.name).shape() == spec.shape);
      CHECK(bits_equal(loaded.weight(spec.name).floats(), block.weight(spec.name).floats()));
    }
    const Array x = drawn(90, {2, 5, small.d_model});
    CHECK(bits_equal(loaded.forward(x).floats(), block.forward(x).floats()));

    loaded.save(folder / "again.safetensors");
    CHECK(read_file(folder / "again.safetensors") == read_file(path));

    BlockModule inference = BlockModule::load(cpu(), path, BlockModule::Use::inference);
    CHECK(bits_equal(inference.forward(x).floats(), block.forward(x).floats()));
    CHECK(contains(refusal([&] { inference.backward(x, x); }), {"unsupported: ", "inference is forward only"}));
  }
}

TEST_CASE("The file is an ordinary safetensors file whose last field is its checksum") {
  const TemporaryFolder folder;
  const BlockModule block = make_block(cpu(), small_block("transformer"));
  block.save(folder / "block.safetensors");
  const SafetensorsFile file = read_safetensors(folder / "block.safetensors");
  CHECK(file.metadata.size() == 6);
  CHECK(file.metadata.rbegin()->first == "sha256");
  CHECK(file.metadata.at("format") == "samba.block.v1");
  CHECK(file.metadata.at("kind") == "transformer");
  CHECK(file.metadata.at("profile") == "attn-v1.norm-v1.gemm-leaf128-chains1");
  CHECK(nlohmann::json::parse(file.metadata.at("options")) == block.options());
  CHECK(file.tensors.size() == block.weight_specs().size());
  std::string bytes = read_file(folder / "block.safetensors");
  const std::size_t digest = bytes.find(file.metadata.at("sha256"));
  CHECK(sha256_hex(bytes.replace(digest, 64, 64, '0')) == file.metadata.at("sha256"));
}

TEST_CASE("Every damaged byte of a block's file is found") {
  const TemporaryFolder folder;
  make_block(cpu(), small_block("transformer")).save(folder / "block.safetensors");
  const std::string bytes = read_file(folder / "block.safetensors");
  const Path damaged = folder / "damaged.safetensors";
  const std::vector<std::string> classes = {"checksum", "format",    "json",     "header",       "tensor",
                                            "offsets",  "truncated", "metadata", "header_length"};
  const std::size_t stride = bytes.size() / 300 + 1;
  for (std::size_t i = 0; i < bytes.size(); i += i < 1200 ? 7 : stride) {
    std::string changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ 0x10);
    save_as(damaged, changed);
    INFO("byte " << i);
    CHECK(std::find(classes.begin(), classes.end(), load_class(damaged)) != classes.end());
  }
  for (const std::size_t length : {std::size_t{0}, std::size_t{7}, std::size_t{200}, bytes.size() - 1}) {
    save_as(damaged, bytes.substr(0, length));
    INFO("the first " << length << " bytes");
    CHECK(std::find(classes.begin(), classes.end(), load_class(damaged)) != classes.end());
  }
  save_as(damaged, bytes + "x");
  CHECK(load_class(damaged) == "offsets");
}

TEST_CASE("A foreign file and a block of another profile are refused with the reason") {
  const TemporaryFolder folder;
  const BlockModule block = make_block(cpu(), small_block("mamba1"));
  const ArrayMap weights = block.weights();
  const ConstArrayMap tensors(weights.begin(), weights.end());
  const Path path = folder / "other.safetensors";
  write_safetensors(path, tensors, {{"format", "pt"}});
  CHECK(load_class(path) == "format");
  write_safetensors(path, tensors);
  CHECK(load_class(path) == "format");
  save_as(path, "not a safetensors file at all");
  CHECK(load_class(path) == "header_length");

  const auto write = [&](std::map<std::string, std::string> changes) {
    std::map<std::string, std::string> metadata = {{"kind", "mamba1"},
                                                   {"options", block.options().dump()},
                                                   {"owned_weights", "false"},
                                                   {"profile", std::string(block.profile())}};
    for (const auto& [name, value] : changes) metadata[name] = value;
    write_sealed_safetensors(path, "samba.block.v1", tensors, metadata);
  };
  write({});
  CHECK(load_class(path) == "loads");
  write({{"profile", "mojolearn.identical.mamba1.fp32.v2"}});
  CHECK(contains(refusal([&] { BlockModule::load(cpu(), path); }),
                 {"value: ", "mojolearn.identical.mamba1.fp32.v2", "mojolearn.identical.mamba1.fp32.v1", "weights"}));
  write({{"options", "{"}});
  CHECK(load_class(path) == "metadata");
  write({{"note", "a field more"}});
  CHECK(load_class(path) == "metadata");
  write({{"owned_weights", "maybe"}});
  CHECK(load_class(path) == "metadata");
  write({{"kind", "rnn"}});
  CHECK(contains(refusal([&] { BlockModule::load(cpu(), path); }), {"value: ", "rnn", "mamba1"}));
  write({{"options", R"({"colour": 3})"}});
  CHECK(contains(refusal([&] { BlockModule::load(cpu(), path); }),
                 {"type: ", "other.safetensors", "Mamba1Block", "colour"}));
  CHECK(contains(refusal([&] { BlockModule::load(cpu(), folder / "none"); }), {"value: ", "none"}));
}

TEST_CASE("A block with owned weights saves those, and has them again when it is loaded") {
  const TemporaryFolder folder;
  BlockModule block = make_block(cpu(), small_block("mamba3"));
  const Array x = drawn(91, {1, 3, 32});
  const Array before = block.forward(x);
  block.install_owned_weights();
  Array edited = block.weight("D");
  for (float& value : edited.floats()) value *= 2.0F;
  block.set_weight("D", edited);
  CHECK(bits_equal(block.forward(x).floats(), before.floats()));
  block.save(folder / "owned.safetensors");

  BlockModule loaded = BlockModule::load(cpu(), folder / "owned.safetensors");
  CHECK(same(loaded.export_owned_weights(), block.export_owned_weights()));
  CHECK(bits_equal(loaded.forward(x).floats(), before.floats()));
  loaded.set_weight("D", edited);
  CHECK(bits_equal(loaded.forward(x).floats(), before.floats()));
}

TEST_CASE("Saving leaves a tape valid, and a tape is not saved") {
  const TemporaryFolder folder;
  BlockModule block = make_block(cpu(), small_block("transformer"));
  const Array x = drawn(92, {1, 4, 12});
  const NamedGradients want = block.backward(x, x);
  const BlockModule::Taped taped = block.forward_with_tape(x);
  block.save(folder / "block.safetensors");
  CHECK(
      contains(refusal([&] { taped.tape->save(folder / "tape.safetensors"); }), {"unsupported: ", "not serialisable"}));
  CHECK(folder.entries() == 1);
  CHECK(same(block.backward_from_tape(*taped.tape, x), want));
}

TEST_CASE("A save that fails leaves the old file") {
  const TemporaryFolder folder;
  const BlockModule block = make_block(cpu(), small_block("mamba1"));
  CHECK(contains(refusal([&] { block.save(folder / "missing" / "block.safetensors"); }),
                 {"Mamba1Block.save", "missing"}));
  CHECK(folder.entries() == 0);
}

}  // namespace samba
