// A safetensors file that carries its own checksum: the metadata field "sha256", the last one, is the SHA-256 of the
// whole file with the 64 digits of the field as zeros.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "samba/formats/safetensors.h"

namespace samba {

// `format` names the form of the file and goes into the metadata field "format". Atomically, as write_safetensors.
void write_sealed_safetensors(const std::filesystem::path& path, const std::string& format,
                              const ConstArrayMap& tensors, std::map<std::string, std::string> metadata);

// The tensors and the metadata without "format" and "sha256". Error(corrupt): the classes of parse_safetensors,
// "format" for a file of another form, "checksum".
SafetensorsFile read_sealed_safetensors(const std::filesystem::path& path, const std::string& format);

}  // namespace samba
