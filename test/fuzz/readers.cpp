#include "fuzz/readers.h"

#include <cstdio>
#include <cstdlib>

#include "samba/core/error.h"
#include "temporary_folder.h"

namespace samba::fuzz {

const std::vector<Reader>& readers() {
  static const std::vector<Reader> all{{"samba_archive", read_samba_archive},
                                       {"stack_archive", read_stack_archive},
                                       {"legacy_json", read_legacy_json},
                                       {"block_file", read_block_file},
                                       {"state_file", read_state_file},
                                       {"mlp_checkpoint", read_mlp_checkpoint_file},
                                       {"safetensors", read_safetensors_file},
                                       {"gguf", read_gguf_file},
                                       {"torch", read_torch_pickle},
                                       {"folder", read_foreign_folder},
                                       {"own_folder", read_own_folder},
                                       {"token_shards", read_token_shards},
                                       {"preparation", read_stopped_preparation},
                                       {"run_folder", read_run_folder},
                                       {"hashes", read_hashes_file},
                                       {"documents", read_documents},
                                       {"tokenizer_json", read_tokenizer_json_text},
                                       {"tokenizer_model", read_sentencepiece_model},
                                       {"chat_template", read_chat_template_source},
                                       {"json", read_strict_json},
                                       {"train_config", read_train_config},
                                       {"stack_config", read_stack_config},
                                       {"foreign_config", read_foreign_config},
                                       {"csv", read_csv_rows},
                                       {"metrics", read_metrics},
                                       {"case_file", read_case_file},
                                       {"record", read_record}};
  return all;
}

const Reader* find_reader(std::string_view name) {
  for (const Reader& reader : readers()) {
    if (name == reader.name) return &reader;
  }
  return nullptr;
}

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "samba_fuzz: broken promise: %s\n", what);
  std::abort();
}

bool accepts(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::internal) std::fprintf(stderr, "samba_fuzz: %s\n", error.what());
    expect(error.kind() != ErrorKind::internal, "a file is no defect of samba");
    return false;
  }
  return true;
}

namespace {

Digests wanted = Digests::made_right;

}  // namespace

Digests digests_of_this_run() { return wanted; }

bool run(const Reader& reader, Bytes input, Digests digests) {
  wanted = digests;
  return accepts([&] { reader.read(input); });
}

Path scratch_folder() {
  static const TemporaryFolder folder;
  return folder.path();
}

Path file_with(Bytes input, const std::string& name) {
  const Path path = scratch_folder() / name;
  std::FILE* file = std::fopen(path.c_str(), "wb");
  expect(file != nullptr && std::fwrite(input.data(), 1, input.size(), file) == input.size() && std::fclose(file) == 0,
         "the temporary folder can be written");
  return path;
}

}  // namespace samba::fuzz
