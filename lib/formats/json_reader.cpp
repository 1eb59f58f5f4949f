// The strict JSON reader: RFC 8259 in UTF-8, and none of what the checkpoint files must not hold.
#include <charconv>
#include <vector>

#include "samba/core/error.h"
#include "samba/core/numbers.h"
#include "samba/formats/canonical_json.h"

namespace samba {

namespace {

using Json = nlohmann::json;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_high_surrogate(std::uint32_t unit) { return unit >= 0xD800 && unit < 0xDC00; }
bool is_low_surrogate(std::uint32_t unit) { return unit >= 0xDC00 && unit < 0xE000; }

// The bytes of UTF-8's pattern; a lone surrogate has them too.
void append_code_point(std::string& out, std::uint32_t point) {
  const auto byte = [&](std::uint32_t value) { out += static_cast<char>(static_cast<unsigned char>(value)); };
  if (point < 0x80) {
    byte(point);
  } else if (point < 0x800) {
    byte(0xC0 | point >> 6);
    byte(0x80 | (point & 0x3F));
  } else if (point < 0x10000) {
    byte(0xE0 | point >> 12);
    byte(0x80 | (point >> 6 & 0x3F));
    byte(0x80 | (point & 0x3F));
  } else {
    byte(0xF0 | point >> 18);
    byte(0x80 | (point >> 12 & 0x3F));
    byte(0x80 | (point >> 6 & 0x3F));
    byte(0x80 | (point & 0x3F));
  }
}

constexpr std::size_t kMostJsonValues = std::size_t{1} << 24;

class Reader {
 public:
  Reader(std::string_view text, const JsonReadOptions& options) : text_(text), options_(options) {}

  Json read() {
    Json value = read_value(0);
    skip_blanks();
    if (at_ < text_.size()) fail("something behind the value");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    refuse_value("not JSON: " + reason + " at byte " + std::to_string(at_));
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_blanks() {
    while (at_ < text_.size() && std::string_view(" \t\n\r").find(text_[at_]) != std::string_view::npos) ++at_;
  }
  bool take(char c) {
    if (peek() != c || at_ >= text_.size()) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    skip_blanks();
    if (!take(c)) fail(at_ < text_.size() ? std::string("expected '") + c + "'" : "the text ends too early");
  }

  Json read_value(int depth) {
    skip_blanks();
    if (++values_ > kMostJsonValues) fail("more than " + std::to_string(kMostJsonValues) + " values");
    if (at_ >= text_.size()) fail("the text ends too early");
    switch (peek()) {
      case '{':
        return read_object(depth + 1);
      case '[':
        return read_array(depth + 1);
      case '"':
        return read_string();
      case 't':
        return read_word("true", true);
      case 'f':
        return read_word("false", false);
      case 'n':
        return read_word("null", nullptr);
      default:
        return read_number_value();
    }
  }

  Json read_word(std::string_view word, Json value) {
    if (text_.substr(at_, word.size()) != word) fail("an unknown word");
    at_ += word.size();
    return value;
  }

  void open(int depth) {
    if (depth > kDeepestJson) fail("nested deeper than " + std::to_string(kDeepestJson) + " levels");
    ++at_;
    skip_blanks();
  }

  Json read_object(int depth) {
    open(depth);
    Json object = Json::object();
    if (take('}')) return object;
    do {
      skip_blanks();
      if (peek() != '"') fail("expected a key");
      std::string key = read_string();
      if (object.contains(key)) fail("the key " + canonical_json(key) + " is there twice");
      expect(':');
      object.emplace(std::move(key), read_value(depth));
      skip_blanks();
    } while (take(','));
    expect('}');
    return object;
  }

  Json read_array(int depth) {
    open(depth);
    Json array = Json::array();
    if (take(']')) return array;
    do {
      array.push_back(read_value(depth));
      skip_blanks();
    } while (take(','));
    expect(']');
    return array;
  }

  std::uint32_t read_unit() {
    std::uint32_t unit = 0;
    const std::string_view digits = text_.substr(at_, 4);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), unit, 16);
    if (digits.size() != 4 || error != std::errc{} || end != digits.data() + 4) fail("expected four hex digits");
    at_ += 4;
    return unit;
  }

  void read_escape(std::string& out) {
    const char c = peek();
    ++at_;
    switch (c) {
      case '"':
      case '\\':
      case '/':
        out += c;
        return;
      case 'b':
        out += '\b';
        return;
      case 'f':
        out += '\f';
        return;
      case 'n':
        out += '\n';
        return;
      case 'r':
        out += '\r';
        return;
      case 't':
        out += '\t';
        return;
      case 'u':
        return append_code_point(out, read_escaped_point());
      default:
        --at_;
        fail("an unknown escape");
    }
  }

  std::uint32_t read_escaped_point() {
    const std::uint32_t unit = read_unit();
    if (is_high_surrogate(unit) && text_.substr(at_, 2) == "\\u") {
      const std::size_t here = at_;
      at_ += 2;
      const std::uint32_t low = read_unit();
      if (is_low_surrogate(low)) return 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
      at_ = here;
    }
    if ((is_high_surrogate(unit) || is_low_surrogate(unit)) && !options_.lone_surrogates) fail("a lone surrogate");
    return unit;
  }

  // One character of more than one byte: the shortest form, no surrogate, not above U+10FFFF.
  void read_utf8(std::string& out) {
    const auto byte = [&](std::size_t at) -> std::uint32_t {
      return at < text_.size() ? static_cast<unsigned char>(text_[at]) : 0U;
    };
    const std::uint32_t lead = byte(at_);
    const std::size_t length = lead >= 0xC2 && lead < 0xE0 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
    std::uint32_t point = length == 0 ? 0 : lead & (0x7FU >> length);
    for (std::size_t i = 1; i < length; ++i) {
      if (byte(at_ + i) >> 6 != 2) fail("text that is not UTF-8");
      point = point << 6 | (byte(at_ + i) & 0x3FU);
    }
    const std::uint32_t least = length == 2 ? 0x80 : length == 3 ? 0x800 : 0x10000;
    const bool surrogate = is_high_surrogate(point) || is_low_surrogate(point);
    if (length == 0 || point < least || surrogate || point > 0x10FFFF) fail("text that is not UTF-8");
    out += text_.substr(at_, length);
    at_ += length;
  }

  std::string read_string() {
    ++at_;
    std::string out;
    while (true) {
      if (at_ >= text_.size()) fail("a text without its end");
      const auto c = static_cast<unsigned char>(text_[at_]);
      if (c == '"') break;
      if (c < 0x20) fail("a control character in a text");
      if (c >= 0x80) {
        read_utf8(out);
      } else {
        ++at_;
        if (c == '\\') {
          read_escape(out);
        } else {
          out += static_cast<char>(c);
        }
      }
    }
    ++at_;
    return out;
  }

  void skip_digits() {
    if (!is_digit(peek())) fail("expected a value");
    while (is_digit(peek())) ++at_;
  }

  Json read_number_value() {
    const std::size_t start = at_;
    take('-');
    const std::size_t first_digit = at_;
    if (!take('0')) skip_digits();
    const std::size_t digits = at_ - first_digit;
    bool integer = true;
    if (take('.')) {
      integer = false;
      skip_digits();
    }
    if (take('e') || take('E')) {
      integer = false;
      if (!take('+')) take('-');
      skip_digits();
    }
    const std::string_view number = text_.substr(start, at_ - start);
    if (integer) {
      if (digits > options_.most_digits)
        fail("an integer of more than " + std::to_string(options_.most_digits) + " digits");
      return integer_of(number);
    }
    double value = 0.0;
    if (read_number(number, value) != NumberFault::none) {
      fail("the number " + std::string(number.substr(0, 40)) + " is beyond binary64");
    }
    return value;
  }

  static Json integer_of(std::string_view digits) {
    const auto parse = [&](auto value) -> Json {
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
      if (error == std::errc{}) return value;
      return Json::binary({digits.begin(), digits.end()}, kBigIntegerSubtype);
    };
    return digits.starts_with('-') ? parse(std::int64_t{}) : parse(std::uint64_t{});
  }

  std::string_view text_;
  JsonReadOptions options_;
  std::size_t at_ = 0;
  std::size_t values_ = 0;
};

}  // namespace

Json parse_json(std::string_view text, const JsonReadOptions& options) {
  if (text.starts_with("\xEF\xBB\xBF")) refuse_value("not JSON: it starts with a byte order mark");
  return Reader(text, options).read();
}

}  // namespace samba
