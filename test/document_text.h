// Text for the tests of documents and of samba prepare, packed forms of it, and the documents of files.
#pragma once

#include <zlib.h>
#include <zstd.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "samba/train/documents.h"

namespace samba {

inline std::string sentences(int first, int count) {
  std::string text;
  for (int i = first; i < first + count; ++i) {
    text +=
        "line " + std::to_string((i % 977) * (i % 977) % 977) + " of the text says " + std::to_string(i) + " things\n";
  }
  return text;
}

inline std::string gzip(const std::string& text) {
  z_stream stream{};
  REQUIRE(::deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string packed(::deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  REQUIRE(::deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  ::deflateEnd(&stream);
  return packed;
}

inline std::string zstd(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  return packed;
}

struct Read {
  std::string text;
  bool counts = true;
};

// The documents of some files as their pieces, joined.
inline std::vector<std::vector<Read>> documents(const std::vector<Path>& files, DocumentOptions options,
                                                DocumentPlace from = {}) {
  DocumentReader reader(files, options, from, [](const Sha256Digest&) { return true; });
  std::vector<std::vector<Read>> found(1);
  while (const auto piece = reader.next()) {
    if (found.back().empty() || found.back().back().counts != piece->counts)
      found.back().push_back({"", piece->counts});
    found.back().back().text += piece->text;
    if (piece->last) found.emplace_back();
  }
  REQUIRE(found.back().empty());
  found.pop_back();
  return found;
}

}  // namespace samba
