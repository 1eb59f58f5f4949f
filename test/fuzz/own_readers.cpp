// Files that samba writes itself. Each input is read as it is, then with its digests made right.
#include <memory>

#include "fuzz/fixtures.h"
#include "fuzz/readers.h"
#include "fuzz/repair.h"
#include "samba/backends/reference/executor.h"
#include "samba/blocks/module.h"
#include "samba/convert/model_source.h"
#include "samba/core/error.h"
#include "samba/formats/samba_archive.h"
#include "samba/formats/stack_archive.h"
#include "samba/generate/state_file.h"
#include "samba/train/checkpoint.h"
#include "samba/train/local_communicator.h"
#include "samba/train/mlp_checkpoint.h"
#include "samba/train/stored_model.h"

namespace samba::fuzz {

namespace {

Bytes bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// Two ranks read the same file, each its share of the moments.
bool read_by_ranks(const Path& path) {
  static const std::unique_ptr<Executor> executors[] = {reference::make_reference_executor(),
                                                        reference::make_reference_executor()};
  return accepts([&] {
    LocalRanks(2).run([&](Communicator& communicator) {
      load_for_training(*executors[communicator.rank()], path, {}, {&communicator, 256, 1, 8});
    });
  });
}

// The whole model, as for training and for inference.
void read_whole(Bytes input) {
  const Path path = file_with(input);
  const bool inference = accepts([&] {
    const OpenModel model = open_model(find_model(path));
    for (const ModelTensor& tensor : model.tensors) tensor.load();
  });
  std::unique_ptr<SambaTrainer> trainer;
  const bool trains = accepts([&] { trainer = load_for_training(reference_executor(), path); });
  const Path again = scratch_folder() / "again";
  if (trains && accepts([&] { save_checkpoint(*trainer, again); })) {
    const auto same = load_for_training(reference_executor(), again);
    expect(same->stack().parameters_sha256() == trainer->stack().parameters_sha256(),
           "what was read for training is saved and read again");
  }
  expect(!read_by_ranks(path) || trains, "what two ranks read can be read by one process");
  read_model(path, Reading::everything);
  expect(inference, "what can be read for training can be read for inference");
}

void read_twice(Bytes input, const std::optional<std::string>& repaired, void (*read)(Bytes)) {
  const bool as_it_is = accepts([&] { read(input); });
  const bool repairs = repaired && digests_of_this_run() == Digests::made_right;
  const bool made_right = repairs && accepts([&] { read(bytes_of(*repaired)); });
  if (!as_it_is && !made_right) refuse_corrupt("input", "neither way can it be read");
}

}  // namespace

void read_samba_archive(Bytes input) {
  read_twice(input, repaired_frame(std::string(text_of(input)), kArchiveMagic), read_whole);
}

void read_stack_archive(Bytes input) {
  read_twice(input, repaired_frame(std::string(text_of(input)), kStackMagic), read_whole);
}

void read_legacy_json(Bytes input) { read_twice(input, repaired_payload(text_of(input), false), read_whole); }

void read_block_file(Bytes input) {
  read_twice(input, repaired_seal(std::string(text_of(input))),
             [](Bytes file) { BlockModule::load(reference_executor(), file_with(file), BlockModule::Use::inference); });
}

void read_state_file(Bytes input) {
  read_twice(input, repaired_seal(std::string(text_of(input))), [](Bytes file) {
    const Sequence sequence = load_sequence(tiny_stack(), file_with(file));
    expect(sequence.read() <= sequence.tokens.size(), "a state has read no more than its tokens");
  });
}

void read_mlp_checkpoint_file(Bytes input) {
  read_twice(input, repaired_payload(text_of(input), true), [](Bytes file) {
    const MlpState state = parse_mlp_checkpoint(text_of(file));
    const std::string written = mlp_checkpoint_bytes(state);
    expect(mlp_checkpoint_bytes(parse_mlp_checkpoint(written)) == written, "a state that is written reads back");
  });
}

}  // namespace samba::fuzz
