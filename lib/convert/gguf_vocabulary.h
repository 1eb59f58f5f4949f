// The tokenizer of a model as GGUF metadata and as the files of Hugging Face, both ways.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "samba/convert/open_model.h"
#include "samba/formats/gguf_file.h"
#include "samba/formats/gguf_writer.h"

namespace samba {

// tokenizer.json, tokenizer_config.json (the template of a chat in it) and generation_config.json (the tokens that
// begin and end a text) of a GGUF file's metadata; empty when it has no tokenizer.
std::vector<MadeFile> tokenizer_files_of_gguf(std::shared_ptr<const GgufFile> file);

// Adds the tokenizer of the model: of a GGUF file its metadata as they are, else of tokenizer.json and the files beside
// it among the model's companions. Without one the metadata say that there is none (llama.cpp then takes ids alone).
// Returns what it was made of, or why there is none. `vocab`: rows of the embedding; tokens beyond the tokenizer's are
// named unused.
std::string add_gguf_vocabulary(GgufFields& fields, const OpenModel& model, Index vocab);

}  // namespace samba
