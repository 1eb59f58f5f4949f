#include "samba/formats/byte_source.h"

#include <zlib.h>
#include <zstd.h>

#include <vector>

#include "samba/core/error.h"

namespace samba {

namespace {

constexpr std::size_t kPiece = std::size_t{1} << 18;

class PlainSource final : public ByteSource {
 public:
  explicit PlainSource(const Path& path) : file_(path) {}
  std::size_t read(char* buffer, std::size_t bytes) override { return file_.read(buffer, bytes); }
  std::uint64_t position() const override { return file_.position(); }
  std::uint64_t file_size() const override { return file_.size(); }

 private:
  FileReader file_;
};

// Packed input that is read piece by piece.
class PackedSource : public ByteSource {
 public:
  PackedSource(const Path& path, const char* kind) : file_(path), kind_(kind), packed_(kPiece) {}
  std::uint64_t position() const override { return file_.position(); }
  std::uint64_t file_size() const override { return file_.size(); }

 protected:
  // Reads on when everything was used; false at the end of the file.
  bool has_input() {
    if (next_ < end_) return true;
    next_ = 0;
    end_ = file_.read(packed_.data(), packed_.size());
    return end_ > 0;
  }
  [[noreturn]] void refuse(const std::string& reason) const {
    refuse_corrupt("packed", file_.path().string() + ": the " + kind_ + " content " + reason);
  }
  const char* input() const { return packed_.data() + next_; }
  std::size_t input_size() const { return end_ - next_; }
  void use(std::size_t bytes) { next_ += bytes; }

 private:
  FileReader file_;
  std::string kind_;
  std::vector<char> packed_;
  std::size_t next_ = 0;
  std::size_t end_ = 0;
};

class GzipSource final : public PackedSource {
 public:
  explicit GzipSource(const Path& path) : PackedSource(path, "gzip") {
    constexpr int kGzipWindow = 15 + 16;  // the largest window, a gzip header alone
    if (::inflateInit2(&stream_, kGzipWindow) != Z_OK) throw Error(ErrorKind::resource, "zlib cannot start");
  }
  ~GzipSource() override { ::inflateEnd(&stream_); }

  std::size_t read(char* buffer, std::size_t bytes) override {
    std::size_t done = 0;
    while (done < bytes) {
      if (!has_input()) {
        if (inside_) refuse("is cut off");
        break;
      }
      if (!inside_) ::inflateReset(&stream_);
      inside_ = true;
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input()));
      stream_.avail_in = static_cast<uInt>(input_size());
      const std::size_t room = std::min(bytes - done, kPiece);
      stream_.next_out = reinterpret_cast<Bytef*>(buffer + done);
      stream_.avail_out = static_cast<uInt>(room);
      const int result = ::inflate(&stream_, Z_NO_FLUSH);
      use(input_size() - stream_.avail_in);
      done += room - stream_.avail_out;
      if (result == Z_STREAM_END) {
        inside_ = false;
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        refuse(std::string("is damaged: ") + (stream_.msg != nullptr ? stream_.msg : "no gzip stream"));
      }
    }
    return done;
  }

 private:
  z_stream stream_{};
  bool inside_ = false;  // a member has begun and not ended
};

class ZstdSource final : public PackedSource {
 public:
  explicit ZstdSource(const Path& path) : PackedSource(path, "zstd"), stream_(ZSTD_createDStream(), ZSTD_freeDStream) {
    if (stream_ == nullptr) throw Error(ErrorKind::resource, "zstd cannot start");
  }

  std::size_t read(char* buffer, std::size_t bytes) override {
    ZSTD_outBuffer out{buffer, bytes, 0};
    while (out.pos < out.size) {
      const bool more = has_input();
      if (!more && !inside_) break;
      ZSTD_inBuffer in{input(), input_size(), 0};
      const std::size_t before = out.pos;
      const std::size_t result = ZSTD_decompressStream(stream_.get(), &out, &in);
      if (ZSTD_isError(result) != 0) refuse(std::string("is damaged: ") + ZSTD_getErrorName(result));
      use(in.pos);
      inside_ = result != 0;
      if (!more && inside_ && out.pos == before) refuse("is cut off");
    }
    return out.pos;
  }

 private:
  std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> stream_;
  bool inside_ = false;
};

}  // namespace

std::unique_ptr<ByteSource> open_byte_source(const Path& path) {
  if (path.extension() == ".gz") return std::make_unique<GzipSource>(path);
  if (path.extension() == ".zst") return std::make_unique<ZstdSource>(path);
  return std::make_unique<PlainSource>(path);
}

Path unpacked_name(const Path& path) {
  return path.extension() == ".gz" || path.extension() == ".zst" ? path.stem() : path.filename();
}

}  // namespace samba
