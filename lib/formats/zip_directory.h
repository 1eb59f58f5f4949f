// The entries of a zip file whose data is stored as it is (no compression), as torch.save writes it. Zip64 included.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

namespace samba {

// The data of each entry, by name, as views of `bytes`. Error(corrupt), class "zip", naming the entry: no zip, an entry
// beyond the file, one that is compressed or encrypted, a name twice, two entries that share bytes.
std::map<std::string, std::span<const std::byte>> read_zip_directory(std::span<const std::byte> bytes,
                                                                     const std::string& source);

}  // namespace samba
