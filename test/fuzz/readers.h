// The readers of files as one table: each takes bytes from a stranger. Under libFuzzer (samba_fuzz, scripts/fuzz.sh)
// and in fuzz_found_test, which runs the inputs that were found once.
//
// A reader may refuse with samba::Error of any kind but internal. Everything else it throws, and every promise it does
// not keep (a view outside of its file, a text that does not read back), ends the process.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "samba/core/files.h"

namespace samba::fuzz {

using Bytes = std::span<const std::byte>;

struct Reader {
  const char* name;
  void (*read)(Bytes input);
};

const std::vector<Reader>& readers();
const Reader* find_reader(std::string_view name);

// Files with digests are read as they are; `made_right` reads them with their digests made right as well.
enum class Digests { as_they_are, made_right };

// One input. True: it was read; false: it was refused.
bool run(const Reader& reader, Bytes input, Digests digests = Digests::made_right);
Digests digests_of_this_run();

// Ends the process with what was expected and did not hold.
void expect(bool holds, const char* what);

// Calls `body` and passes over what it refuses (Error of any kind but internal). True when nothing was refused.
bool accepts(const std::function<void()>& body);

inline std::string_view text_of(Bytes input) { return {reinterpret_cast<const char*>(input.data()), input.size()}; }

// A file of this process's own folder with the input in it; the next call writes over it.
Path file_with(Bytes input, const std::string& name = "input");
Path scratch_folder();

// ---- the readers, by subject ----

void read_samba_archive(Bytes input);
void read_stack_archive(Bytes input);
void read_legacy_json(Bytes input);
void read_block_file(Bytes input);
void read_state_file(Bytes input);
void read_mlp_checkpoint_file(Bytes input);

void read_safetensors_file(Bytes input);
void read_gguf_file(Bytes input);
void read_torch_pickle(Bytes input);
void read_foreign_folder(Bytes input);

void read_own_folder(Bytes input);
void read_token_shards(Bytes input);
void read_stopped_preparation(Bytes input);
void read_run_folder(Bytes input);
void read_hashes_file(Bytes input);
void read_documents(Bytes input);

void read_tokenizer_json_text(Bytes input);
void read_sentencepiece_model(Bytes input);
void read_chat_template_source(Bytes input);

void read_strict_json(Bytes input);
void read_train_config(Bytes input);
void read_stack_config(Bytes input);
void read_foreign_config(Bytes input);
void read_csv_rows(Bytes input);
void read_metrics(Bytes input);
void read_case_file(Bytes input);
void read_record(Bytes input);

}  // namespace samba::fuzz
