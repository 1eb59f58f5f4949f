// Digests made right again, so that what lies behind them is reached with other bytes than a writer's.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace samba::fuzz {

// A streamed archive or a samba.stack.v1 file: the digests of its arrays in the header, then the header's own. Empty
// when there is nothing to make right: another magic, a header that is not there whole or no JSON.
std::optional<std::string> repaired_frame(std::string file, std::string_view magic);

// A sealed safetensors file. Empty when it has no field for the digest.
std::optional<std::string> repaired_seal(std::string file);

// {"payload": ..., "payload_sha256": ...}: canonical text for the first argument, escapes of the MLP's files when
// asked.
std::optional<std::string> repaired_payload(std::string_view file, bool short_escapes);

// The index of token shards in which a file of the folder has this content: its digest, where the file is another one
// than the index, and that of the index itself. Empty for what is no JSON object.
std::optional<std::string> repaired_shard_index(std::string_view index, std::string_view file,
                                                std::string_view content);

// progress.json with the settings of another one. Empty for what is no JSON object.
std::optional<std::string> repaired_progress(std::string_view progress, std::string_view settings_of);

}  // namespace samba::fuzz
