// Checkpoints of general stacks: a run that was stopped and resumed has the bits of one that was not; a file that does
// not fit its configuration is refused by its class.
#include "samba/train/stack_checkpoint.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "samba/backends/registry.h"
#include "samba/convert/convert.h"
#include "samba/core/error.h"
#include "samba/core/sha256.h"
#include "samba/formats/stack_weight.h"
#include "samba/train/checkpoint.h"
#include "small_stack.h"
#include "temporary_folder.h"

using namespace samba;
using Json = nlohmann::json;

namespace {

StackConfig general_config() {
  return stack_config_from_json(
      Json::parse(R"({"vocab": 11, "d_model": 32, "tie_embeddings": false, "embedding_scale": 4.0,
                      "layers": [{"kind": "transformer", "n_heads": 2, "n_kv_heads": 1, "intermediate": 12},
                                 {"kind": "mamba2"}, {"kind": "mamba1"}]})"));
}

OptimizerSettings settings_of(OptimizerKind kind) {
  OptimizerSettings settings = OptimizerSettings::defaults(kind);
  settings.lr = 0.01;
  settings.max_norm = 0.5;
  if (kind == OptimizerKind::sgd) settings.momentum = 0.9;
  return settings;
}

std::optional<Schedule> cosine() {
  ScheduleFields schedule;
  schedule.kind = "cosine";
  schedule.peak_lr = 0.01;
  schedule.warmup_steps = 2;
  schedule.total_steps = 9;
  return Schedule(schedule);
}

void train(SambaTrainer& trainer, Index first, Index steps) {
  for (Index step = first; step < first + steps; ++step) {
    trainer.train_step(token_array(2, 5, 11, 2 * step), token_array(2, 5, 11, 2 * step + 1));
  }
}

std::string digest(const SambaTrainer& trainer) {
  std::string text = trainer.stack().parameters_sha256() + " t" + std::to_string(trainer.completed_steps()) + " rng" +
                     std::to_string(trainer.generator().counter());
  const Array m = trainer.exp_avg();
  text += " " + sha256_hex(m.data(), m.byte_size());
  if (trainer.optimizer().exp_avg_sq() != nullptr) {
    const Array v = trainer.exp_avg_sq();
    text += " " + sha256_hex(v.data(), v.byte_size());
  }
  return text;
}

struct Fixture {
  Fixture() {
    trainer = SambaTrainer::create(*executor, general_config(), 7, settings_of(OptimizerKind::adamw), cosine());
    train(*trainer, 0, 2);
    save_checkpoint(*trainer, folder / "a.samba");
  }

  // The class of the refusal of the file written anew with other parameters, moments or state.
  using Sources = std::vector<StackTensorSource>;
  std::string changed(const std::function<void(Json&, Sources&, Sources&)>& change, bool training = true) {
    StackArchiveReader reader(folder / "a.samba");
    Sources lists[2];
    for (int list = 0; list < 2; ++list) {
      for (const StackTensor& tensor : list == 0 ? reader.parameters() : reader.moments()) {
        lists[list].push_back(
            {tensor.name, tensor.dtype, tensor.shape, [raw = reader.read(tensor)](std::span<std::byte> to) {
               std::memcpy(to.data(), raw.data(), std::min(to.size(), raw.size()));
             }});
      }
    }
    Json state = reader.state();
    change(state, lists[0], lists[1]);
    write_stack_archive(folder / "b.samba", state, lists[0], lists[1]);
    try {
      if (training) {
        load_for_training(*executor, folder / "b.samba");
      } else {
        load_for_inference(*executor, folder / "b.samba");
      }
    } catch (const Error& error) {
      // A sound file of another numeric mode is bad use, not damage.
      CHECK(error.kind() == (error.error_class() == "numeric_mode" ? ErrorKind::value : ErrorKind::corrupt));
      message = error.what();
      CHECK_THAT(message, Catch::Contains("b.samba"));
      return error.error_class();
    }
    return "";
  }

  TemporaryFolder folder;
  std::unique_ptr<Executor> executor = make_executor("cpu");
  std::unique_ptr<SambaTrainer> trainer;
  std::string message;
};

}  // namespace

TEST_CASE("a general stack resumed from its checkpoint has the bits of the run that was not stopped") {
  const auto executor = make_executor("cpu");
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::adam, OptimizerKind::sgd}) {
    const TemporaryFolder folder;
    const auto whole = SambaTrainer::create(*executor, general_config(), 7, settings_of(kind), cosine());
    train(*whole, 0, 2);
    const std::string saved = save_checkpoint(*whole, folder / "a.samba");
    CHECK(is_stack_archive(folder / "a.samba"));
    CHECK(saved == sha256_hex(read_file(folder / "a.samba")));
    const auto resumed = load_for_training(*executor, folder / "a.samba");
    CHECK(digest(*resumed) == digest(*whole));
    CHECK(resumed->optimizer().settings() == whole->optimizer().settings());
    CHECK(resumed->optimizer().schedule() == whole->optimizer().schedule());
    CHECK(save_checkpoint(*resumed, folder / "b.samba") == saved);
    train(*whole, 2, 3);
    train(*resumed, 2, 3);
    CHECK(digest(*resumed) == digest(*whole));
  }
}

TEST_CASE_METHOD(Fixture, "a general stack loaded for inference computes the logits of the one in training") {
  const auto stack = load_for_inference(*executor, folder / "a.samba");
  CHECK(stack->use() == SambaStack::Use::inference);
  CHECK(stack->config() == general_config());
  const Array ids = token_array(2, 6, 11, 4);
  const Array logits = stack->forward(ids);
  const Array expected = trainer->stack().forward(ids);
  CHECK(std::memcmp(logits.data(), expected.data(), logits.byte_size()) == 0);
  CHECK_THROWS_WITH(stack->loss(ids, ids), Catch::Contains("inference is forward only"));

  const CheckpointSummary summary = inspect_checkpoint(folder / "a.samba", true);
  CHECK(summary.config == general_config());
  CHECK(summary.state["step"] == 2);
  CHECK(summary.bytes == std::filesystem::file_size(folder / "a.samba"));
}

TEST_CASE_METHOD(Fixture, "a file whose tensors are not those of its configuration is refused as registry") {
  CHECK(changed([](Json&, Sources&, Sources&) {}).empty());
  CHECK(changed([](Json&, Sources& p, Sources&) { p.pop_back(); }) == "registry");
  CHECK_THAT(message, Catch::Contains("the parameter lm_head.weight is missing"));
  CHECK(changed([](Json&, Sources& p, Sources&) { std::swap(p[0], p[1]); }) == "registry");
  CHECK(changed([](Json&, Sources& p, Sources&) { p[0].name = "embed.other"; }) == "registry");
  CHECK_THAT(message, Catch::Contains("parameter 0 must be embed.weight (11, 32), got embed.other (11, 32)"));
  CHECK(changed([](Json&, Sources& p, Sources&) { p[0].shape = {32, 11}; }) == "registry");
  CHECK(changed(
            [](Json&, Sources& p, Sources&) {
              p.push_back({"more", DType::float32, {1}, p[0].read});
            },
            false) == "registry");
  CHECK_THAT(message, Catch::Contains("the parameter more is none of this model"));
  CHECK(changed([](Json&, Sources&, Sources& m) { m.pop_back(); }) == "registry");
  CHECK_THAT(message, Catch::Contains("the moment buf_initialized is missing"));
  CHECK(changed([](Json&, Sources&, Sources& m) { m[1].name = "exp_avg.other"; }) == "registry");
  CHECK(changed([](Json&, Sources&, Sources& m) { m.pop_back(); }, false).empty());  // not looked at for inference
  CHECK(changed([](Json& s, Sources&, Sources&) { s["config"]["vocab"] = 12; }) == "registry");
  CHECK(changed([](Json& s, Sources&, Sources&) { s["config"]["layers"][1]["kind"] = "mamba4"; }) == "config");
  CHECK_THAT(message, Catch::Contains("/config/layers/1/kind"));
  CHECK(changed([](Json& s, Sources&, Sources&) { s["config"]["d_modl"] = 1; }, false) == "config");
}

TEST_CASE_METHOD(Fixture, "for training each field of a stack's state is refused by its class") {
  const auto check = [&](const char* error_class, const std::function<void(Json&)>& edit) {
    CHECK(changed([&](Json& state, Sources&, Sources&) { edit(state); }) == error_class);
    CHECK(changed([&](Json& state, Sources&, Sources&) { edit(state); }, false).empty());
  };
  check("optimizer", [](Json& state) { state["optimizer"]["kind"] = "lion"; });
  check("optimizer", [](Json& state) { state["optimizer"]["beta1"] = 1.0; });
  check("optimizer", [](Json& state) { state["optimizer"]["lr"] = "0.1"; });
  check("optimizer", [](Json& state) { state["optimizer"].erase("eps"); });
  check("optimizer", [](Json& state) { state["optimizer"].erase("max_norm"); });
  check("optimizer", [](Json& state) { state["optimizer"]["maximize"] = 0; });
  check("optimizer", [](Json& state) { state["optimizer"]["momentum"] = 0.9; });
  check("optimizer", [](Json& state) { state["optimizer"]["accumulation_steps"] = 3; });
  check("schedule", [](Json& state) { state["schedule"].erase("kind"); });
  check("rng", [](Json& state) { state["rng"]["seed"] = -1; });
  check("rng", [](Json& state) { state["rng"]["counter"] = 1.5; });
  check("numeric_mode", [](Json& state) { state["numeric_mode"] = "fast"; });
}

TEST_CASE_METHOD(Fixture, "a model without moments is for inference only") {
  const auto without = [](Json& state, Sources&, Sources& moments) {
    moments.clear();
    state["optimizer"] = state["schedule"] = state["rng"] = nullptr;
  };
  CHECK(changed(without) == "inference_only");
  CHECK_THAT(message, Catch::Contains("without moments and optimizer"));
  CHECK(changed(without, false).empty());
  for (const WeightFormat format : {WeightFormat::bfloat16, WeightFormat::int8}) {
    ConvertOptions options;
    options.format = format;
    convert_model(find_model(folder / "a.samba"), folder / "packed.samba", options);
    try {
      load_for_training(*executor, folder / "packed.samba");
      FAIL("was not refused");
    } catch (const Error& error) {
      CHECK(error.error_class() == "inference_only");
      CHECK_THAT(error.what(), Catch::Contains("rounded to " + std::string(weight_format_name(format))));
    }
  }
}

TEST_CASE_METHOD(Fixture, "packed vectors are refused, packed matrices run with the bits of their expansion") {
  CHECK(changed(
            [](Json& state, Sources& parameters, Sources& moments) {
              moments.clear();
              state["optimizer"] = state["schedule"] = state["rng"] = nullptr;
              state["weight_format"] = "bfloat16";
              for (StackTensorSource& source : parameters) {
                if (source.shape.size() == 1) {
                  source.dtype = DType::bfloat16;
                  source.read = [](std::span<std::byte> raw) { std::fill(raw.begin(), raw.end(), std::byte{0}); };
                  break;
                }
              }
            },
            false) == "registry");
  CHECK_THAT(message, Catch::Contains("only matrices are packed"));
  const Array ids = token_array(2, 6, 11, 4);
  for (const WeightFormat format : {WeightFormat::bfloat16, WeightFormat::int8}) {
    ConvertOptions options;
    options.format = format;
    convert_model(find_model(folder / "a.samba"), folder / "packed.samba", options);
    options.format = WeightFormat::float32;
    convert_model(find_model(folder / "packed.samba"), folder / "expanded.samba", options);
    options.format.reset();
    options.target = ConvertTarget::folder;
    convert_model(find_model(folder / "packed.samba"), folder / std::string(weight_format_name(format)), options);
    const auto from_folder = load_for_inference(*executor, folder / std::string(weight_format_name(format)));
    CHECK(from_folder->weight_format() == format);
    CHECK(from_folder->parameters_sha256() ==
          load_for_inference(*executor, folder / "expanded.samba")->parameters_sha256());
    const auto stack = load_for_inference(*executor, folder / "packed.samba");
    CHECK(stack->weight_format() == format);  // not expanded at load
    const Array packed = stack->forward(ids);
    const Array expanded = load_for_inference(*executor, folder / "expanded.samba")->forward(ids);
    CHECK(std::memcmp(packed.data(), expanded.data(), packed.byte_size()) == 0);
    const Array original = trainer->stack().forward(ids);
    CHECK(std::memcmp(packed.data(), original.data(), packed.byte_size()) != 0);
  }
}
