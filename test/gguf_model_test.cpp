// Models in GGUF files: test/gguf holds tiny models of transformers as llama.cpp converts them, with the weights and
// logits of transformers (scripts/record_gguf.py).
#include "samba/convert/gguf_model.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include "bits.h"
#include "closeness.h"
#include "gguf_bytes.h"
#include "huggingface_recording.h"
#include "samba/backends/registry.h"
#include "samba/convert/convert.h"
#include "samba/convert/gguf_names.h"
#include "samba/convert/gguf_write.h"
#include "samba/convert/model_source.h"
#include "samba/core/error.h"
#include "samba/formats/gguf_file.h"
#include "samba/generate/decode_session.h"
#include "samba/numerics/elementary.h"
#include "temporary_folder.h"

namespace samba {
namespace {

using Catch::Matchers::Contains;

constexpr const char* kArchitectures[] = {"llama", "qwen2", "qwen3", "gemma", "mamba", "mamba2"};

// A pass through two layers has some thirty rounded stages.
constexpr double kLogitsBound = 16.0;

Path gguf_path(const std::string& name) { return Path(SAMBA_SOURCE_DIR) / "test" / "gguf" / (name + ".gguf"); }

SafetensorsFile recorded(const std::string& name) {
  return read_safetensors(Path(SAMBA_SOURCE_DIR) / "test" / "gguf" / (name + ".safetensors"));
}

// Registry names out of those of transformers.
ArrayMap recorded_weights(const std::string& kind, const SafetensorsFile& file) {
  ArrayMap weights;
  for (const auto& [name, array] : file.tensors) {
    if (name == "ids" || name == "logits" || name == "greedy") continue;
    std::string ours = samba_name(kind, name);
    if (ours.ends_with(".norm.weight") && kind == "mamba2" && name.find("mixer") == std::string::npos) {
      ours.replace(ours.size() - 11, 11, "block_norm.weight");
    }
    weights.emplace(ours, array);
  }
  return weights;
}

const ModelTensor& tensor_of(const OpenModel& model, const std::string& name) {
  for (const ModelTensor& tensor : model.tensors) {
    if (tensor.name == name) return tensor;
  }
  throw std::runtime_error("no tensor " + name);
}

std::unique_ptr<SambaStack> expanded_stack(Executor& executor, const OpenModel& model) {
  const StoredModel stored = stored_model(model);
  return std::make_unique<SambaStack>(executor, model.state.config, ConstWeightMap(stored.weights),
                                      SambaStack::Use::inference);
}

WeightFormat as_float32(const ModelTensor&) { return WeightFormat::float32; }

Conversion converted(const Path& in, const Path& out, ConvertTarget target,
                     std::optional<WeightFormat> format = std::nullopt) {
  ConvertOptions options;
  options.target = target;
  options.format = format;
  return convert_model(find_model(in), out, options);
}

void check_same_tensors(const Path& path, const Path& other) {
  const GgufFile got(path), want(other);
  CHECK(got.tensors().size() == want.tensors().size());
  for (const GgufTensor& tensor : want.tensors()) {
    INFO(tensor.name);
    REQUIRE(got.find(tensor.name) != nullptr);
    CHECK(got.find(tensor.name)->format == tensor.format);
    CHECK(std::equal(tensor.bytes.begin(), tensor.bytes.end(), got.find(tensor.name)->bytes.begin(),
                     got.find(tensor.name)->bytes.end()));
  }
}

std::vector<std::int32_t> greedy_tokens(SambaStack& stack, const std::vector<std::int32_t>& prompt, Index count) {
  DecodeOptions options;
  options.max_tokens = count;
  options.sampler.temperature = 0.0;
  options.tokenizer = nullptr;
  const DecodeRequest request{prompt, 0};
  return decode(stack, {&request, 1}, options).front().tokens;
}

}  // namespace

TEST_CASE("a model that llama.cpp converted has the weights of transformers") {
  for (const std::string name : kArchitectures) {
    const OpenModel model = open_gguf(gguf_path(name));
    const ArrayMap weights = recorded_weights(name, recorded(name));
    CHECK(weights.size() == model.tensors.size());
    for (const ModelTensor& tensor : model.tensors) {
      INFO(name << " " << tensor.name);
      REQUIRE(weights.contains(tensor.name));
      const Array& want = weights.at(tensor.name);
      const Array got = floats_of(tensor);
      REQUIRE(got.size() == want.size());
      const bool gemma_norm = name == "gemma" && tensor.name.find("norm") != std::string::npos;
      const bool rate = tensor.name.ends_with("A_log");
      if (!gemma_norm && !rate) {
        CHECK(bits_equal(got.floats(), want.floats()));
        continue;
      }
      for (std::size_t i = 0; i < got.floats().size(); ++i) {
        const float g = got.floats()[i], w = want.floats()[i];
        if (gemma_norm) CHECK(1.0F + g == 1.0F + w);  // what the block multiplies with
        if (rate) CHECK(std::fabs(elementary::exp(g) - elementary::exp(w)) <= 2.4e-7F * elementary::exp(w));
      }
    }
  }
}

TEST_CASE("a model that llama.cpp converted has the logits and greedy tokens of transformers") {
  const auto executor = make_executor("cpu");
  for (const std::string name : kArchitectures) {
    INFO(name);
    const SafetensorsFile file = recorded(name);
    const auto stack = load_model(*executor, find_model(gguf_path(name)));
    const Array logits = stack->forward(file.tensors.at("ids"));
    const double found = distance(logits.floats(), file.tensors.at("logits").floats(), 128);
    INFO("distance " << found);
    CHECK(found <= kLogitsBound);
    const auto ids = file.tensors.at("ids").values<std::int32_t>();
    const auto want = file.tensors.at("greedy").values<std::int32_t>();
    CHECK(greedy_tokens(*stack, {ids.begin(), ids.end()}, static_cast<Index>(want.size())) ==
          std::vector<std::int32_t>(want.begin(), want.end()));
  }
}

TEST_CASE("a model of packed tensors has the bits of its expansion, on every executor") {
  const OpenModel model = open_gguf(gguf_path("llama_mixed"));
  const Array ids = recorded("llama").tensors.at("ids");
  const auto values = ids.values<std::int32_t>();
  const auto reference = make_executor("reference");
  const Array want = expanded_stack(*reference, model)->forward(ids);
  const auto check = [&](Executor& executor) {
    const auto stack = load_for_inference(executor, model);
    CHECK(stack->weight_format() != WeightFormat::float32);
    CHECK(bits_equal(stack->forward(ids).floats(), want.floats()));
    const auto state = stack->allocate_state(1, 32);
    const std::size_t vocab = want.floats().size() / values.size();
    std::vector<float> logits(vocab);
    for (std::size_t t = 0; t < values.size(); ++t) {  // one token at a time: products of one row
      stack->step(values.subspan(t, 1), *state, logits);
      CHECK(bits_equal(logits, want.floats().subspan(t * vocab, vocab)));
    }
  };
  check(*reference);
  for (const std::string& set : instruction_sets()) {
    INFO(set);
    check(*make_executor("cpu", {2, set}));
  }
}

TEST_CASE("matrices are read where they lie in the mapped file") {
  const OpenModel model = open_gguf(gguf_path("llama_mixed"));
  const ModelTensor& q = tensor_of(model, "layers.0.q_proj.weight");
  REQUIRE(q.view.has_value());
  CHECK(q.dtype == "Q4_1");
  CHECK(q.view->packed().format == WeightFormat::q4_1);
  CHECK(q.view->packed().interleaved_head == 16);
  CHECK(q.load().format() == WeightFormat::float32);
  CHECK(bits_equal(expand(*q.view).floats(), q.load().array().floats()));
  CHECK(!tensor_of(model, "layers.0.q_proj.bias").view.has_value());
}

TEST_CASE("what is written as GGUF is what llama.cpp writes") {
  TemporaryFolder folder;
  for (const std::string name : kArchitectures) {
    INFO(name);
    const OpenModel model = open_gguf(gguf_path(name));
    const GgufPlan plan = plan_gguf(model, WeightFormat::float32, as_float32);
    CHECK(gguf_architecture_name(plan.architecture) == name);
    const Path path = folder / (name + ".gguf");
    write_gguf_model(plan, model, path);
    const GgufFile ours(path), theirs(gguf_path(name));
    CHECK(ours.tensors().size() == theirs.tensors().size());
    for (const GgufTensor& want : theirs.tensors()) {
      INFO(want.name);
      const GgufTensor* const got = ours.find(want.name);
      REQUIRE(got != nullptr);
      CHECK(got->shape == want.shape);
      REQUIRE(got->bytes.size() == want.bytes.size());
      if (want.name.ends_with("ssm_a") || want.name == "rope_freqs.weight") {
        const auto* a = reinterpret_cast<const float*>(got->bytes.data());
        const auto* b = reinterpret_cast<const float*>(want.bytes.data());
        for (std::size_t i = 0; i < got->bytes.size() / 4; ++i) CHECK(a[i] == Approx(b[i]).epsilon(3e-7));
      } else {
        CHECK(std::equal(want.bytes.begin(), want.bytes.end(), got->bytes.begin()));
      }
    }
    for (const auto& [key, value] : theirs.metadata()) {
      if (!key.starts_with(name + ".") || key.ends_with("dt_b_c_rms")) continue;
      INFO(key);
      REQUIRE(ours.metadata().contains(key));
      CHECK(ours.metadata().at(key).integer == value.integer);
      CHECK(ours.metadata().at(key).number == value.number);
    }
    CHECK(open_gguf(path).state.config == model.state.config);
  }
}

TEST_CASE("BF16 matrices keep their bits in every form") {
  for (const std::string name : {"llama", "gemma", "mamba2"}) {  // interleaved q and k, norms of 1 + w, convolutions
    INFO(name);
    const TemporaryFolder folder;
    converted(gguf_path(name), folder / "a.gguf", ConvertTarget::gguf, WeightFormat::bfloat16);
    const Conversion there = converted(folder / "a.gguf", folder / "b.samba", ConvertTarget::file);
    CHECK(there.to_format == WeightFormat::bfloat16);
    for (const ConvertedTensor& tensor : there.tensors) CHECK(!tensor.largest_error);
    const Conversion aside = converted(folder / "a.gguf", folder / "c", ConvertTarget::folder);
    CHECK(aside.to_format == WeightFormat::bfloat16);
    converted(folder / "b.samba", folder / "d.gguf", ConvertTarget::gguf);
    check_same_tensors(folder / "d.gguf", folder / "a.gguf");
    converted(folder / "c", folder / "e.gguf", ConvertTarget::gguf);
    check_same_tensors(folder / "e.gguf", folder / "a.gguf");
    const auto cpu = make_executor("cpu");
    const Array ids = recorded(name).tensors.at("ids");
    const Array want = load_model(*cpu, find_model(folder / "a.gguf"))->forward(ids);
    CHECK(bits_equal(load_model(*cpu, find_model(folder / "b.samba"))->forward(ids).floats(), want.floats()));
  }
}

TEST_CASE("of a file of many types only BF16 matrices stay packed, and no other is rounded to them") {
  const TemporaryFolder folder;
  const OpenModel source = open_gguf(gguf_path("llama_mixed"));
  const Conversion conversion = converted(gguf_path("llama_mixed"), folder / "a.samba", ConvertTarget::file);
  converted(folder / "a.samba", folder / "b.gguf", ConvertTarget::gguf);
  const OpenModel kept = open_model(find_model(folder / "a.samba")), back = open_gguf(folder / "b.gguf");
  for (std::size_t i = 0; i < source.tensors.size(); ++i) {
    INFO(source.tensors[i].name);
    const bool narrow = source.tensors[i].dtype == "BF16";
    CHECK(conversion.tensors[i].dtype == (narrow ? "bfloat16" : "float32"));
    CHECK(back.tensors[i].dtype == (narrow ? "BF16" : "F32"));
    const Array values = floats_of(source.tensors[i]);
    CHECK(bits_equal(floats_of(kept.tensors[i]).floats(), values.floats()));
    CHECK(bits_equal(floats_of(back.tensors[i]).floats(), values.floats()));
  }
}

TEST_CASE("the nearest logarithm of a rate is found") {
  float worst = 0.0F;
  for (float rate = 0.01F; rate < 20.0F; rate += 0.0173F) {
    const float back = elementary::exp(log_of_rate(rate));
    worst = std::max(worst, std::fabs(back - rate) / rate);
  }
  CHECK(worst <= 2.4e-7F);
}

TEST_CASE("what a stack cannot be is refused by key or tensor") {
  TemporaryFolder folder;
  const auto refusal = [&](const GgufBytes& file, std::size_t data) {
    write_file_atomically(folder / "a.gguf", file.file(data));
    try {
      open_gguf(folder / "a.gguf");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const auto llama = [](const std::string& key, std::uint32_t value) {
    GgufBytes file;
    file.text("general.architecture", "llama").count("llama.embedding_length", 32).count("llama.block_count", 1);
    file.count("llama.context_length", 64).count("llama.feed_forward_length", 32);
    file.count("llama.attention.head_count", 2).number("llama.attention.layer_norm_rms_epsilon", 1e-5F);
    if (!key.empty()) file.count(key, value);
    file.tensor("token_embd.weight", {32, 8}, 8, 0);
    return file;
  };
  CHECK_THAT(refusal(llama("", 0), 272), Contains("the tensor output_norm.weight is missing") ||
                                             Contains("the tensor blk.0.attn_norm.weight is missing"));
  CHECK_THAT(refusal(llama("llama.expert_count", 8), 272), Contains("llama.expert_count: must be 0"));
  CHECK_THAT(refusal(llama("llama.attention.sliding_window", 16), 272), Contains("llama.attention.sliding_window"));
  CHECK_THAT(refusal(llama("llama.new_trick", 1), 272), Contains("llama.new_trick: is not known"));
  CHECK_THAT(refusal(llama("llama.rope.dimension_count", 8), 272), Contains("llama.rope.dimension_count: must be 16"));
  CHECK_THAT(refusal(llama("llama.vocab_size", 9), 272), Contains("llama.vocab_size: must be 8"));
  CHECK_THAT(refusal(llama("", 0).tensor("blk.0.mystery.weight", {4}, 0, 288), 320),
             Contains("the tensor blk.0.mystery.weight has no place"));
  CHECK_THAT(refusal(GgufBytes().text("general.architecture", "falcon"), 0),
             Contains("general.architecture: must be one of llama, qwen2"));
  CHECK_THAT(refusal(GgufBytes(), 0), Contains("general.architecture"));
}

TEST_CASE("a stack that no architecture computes is refused with the reasons") {
  OpenModel model = open_gguf(gguf_path("llama"));
  model.state.config.layers[1].transformer.attn_softcap = 30.0F;
  CHECK_THROWS_WITH(plan_gguf(model, WeightFormat::float32, as_float32),
                    Contains("llama: layer 1 has an attn_softcap") && Contains("mamba: layer 0 is transformer"));
  CHECK_THROWS_WITH(plan_gguf(open_gguf(gguf_path("llama")), WeightFormat::int8, as_float32),
                    Contains("--to gguf holds float32 or bfloat16, got int8"));
}

TEST_CASE("every folder of transformers that an architecture computes keeps its bits through a GGUF file") {
  const auto cpu = make_executor("cpu");
  std::vector<std::string> written;
  for (const auto& entry : std::filesystem::directory_iterator(Path(SAMBA_SOURCE_DIR) / "test/huggingface/folders")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("mamba")) continue;  // their rates are the nearest that there are
    INFO(name);
    const TemporaryFolder folder;
    try {
      converted(entry.path(), folder / "model.gguf", ConvertTarget::gguf);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::unsupported);
      continue;
    }
    written.push_back(name);
    Array ids(DType::int32, {1, 12});
    for (std::size_t t = 0; t < 12; ++t) ids.values<std::int32_t>()[t] = static_cast<std::int32_t>(3 * t % 16);
    CHECK(bits_equal(load_model(*cpu, find_model(folder / "model.gguf"))->forward(ids).floats(),
                     load_model(*cpu, find_model(entry.path()))->forward(ids).floats()));
  }
  std::sort(written.begin(), written.end());
  CHECK(written == std::vector<std::string>{"gemma", "llama", "llama_float16", "llama_sharded", "llama_stored_twice",
                                            "llama_tied", "qwen2", "qwen3"});
}

TEST_CASE("the scaling of rotary angles is read from its factors, and not written where they do not tell it") {
  const auto scaling = [](float low, Index positions) {
    RopeScaling given;
    given.kind = RopeScaling::Kind::llama3;
    given.factor = 8.0F;
    given.low_freq_factor = low;
    given.high_freq_factor = 4.0F;
    given.original_max_position_embeddings = positions;
    return given;
  };
  for (const Index positions : {Index{8192}, Index{4096}, Index{131072}}) {
    CHECK(scaling_of_rope_factors(llama3_rope_factors(64, 500000.0F, scaling(1.0F, positions)), 500000.0F) ==
          scaling(1.0F, positions));
  }
  CHECK(scaling_of_rope_factors(std::vector<float>(32, 1.0F), 500000.0F) == RopeScaling());
  CHECK(!scaling_of_rope_factors(llama3_rope_factors(64, 500000.0F, scaling(2.0F, 8192)), 500000.0F));
  CHECK(!scaling_of_rope_factors(llama3_rope_factors(64, 500000.0F, scaling(1.0F, 5000)), 500000.0F));
  OpenModel model = open_gguf(gguf_path("llama"));
  for (LayerConfig& layer : model.state.config.layers) {
    layer.transformer.rope_theta = 500000.0F;
    layer.transformer.rope_scaling = scaling(1.0F, 5000);
  }
  CHECK_THROWS_WITH(plan_gguf(model, WeightFormat::float32, as_float32),
                    Contains("layer 0 has rope_scaling llama3 with other numbers"));
}

}  // namespace samba
