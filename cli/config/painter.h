// Lines for a terminal of some width.
#pragma once

#include <string>
#include <vector>

namespace mtl {

struct Canvas {
  int columns = 80;
  int rows = 24;
  bool color = false;
  bool utf8 = false;
};

// Styles are SGR parameters of ECMA-48; "" is none.
namespace style {
inline constexpr const char* kBold = "1";
inline constexpr const char* kDim = "2";
inline constexpr const char* kMarked = "32";
inline constexpr const char* kWrong = "31";
inline constexpr const char* kAside = "36";
inline constexpr const char* kUnderCaret = "7";
}  // namespace style

// Lines of a frame, each cut to the width before it gets its style.
class Painter {
 public:
  explicit Painter(const Canvas& canvas);
  std::string line(const std::string& text, const char* style = "") const;
  // Wrapped, and indented by so many columns.
  std::vector<std::string> paragraph(const std::string& text, const char* style, int indent) const;
  // Two styles in one line: what is left of the width goes to the second.
  std::string two(const std::string& left, const char* left_style, const std::string& right,
                  const char* right_style) const;
  // As it is, in a style if there are any.
  std::string styled(const std::string& text, const char* style) const;
  int width() const { return width_; }
  bool color() const { return canvas_.color; }
  bool utf8() const { return canvas_.utf8; }

 private:
  Canvas canvas_;
  int width_;
};

}  // namespace mtl
