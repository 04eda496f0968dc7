// Error answers are folded to one line each: they all have the same schema and headers, which are shown on request.

/** A plugin of Swagger UI. */
export const foldedErrors = {
  wrapComponents: {
    response: (Response, { React, getComponent }) =>
      function FoldedResponse(props) {
        const [open, setOpen] = React.useState(false);
        const { code, response } = props;
        if (open || !/^([45]|default)/.test(code)) return React.createElement(Response, props);
        const Markdown = getComponent("Markdown", true);
        const about = React.createElement(Markdown, { source: response.get("description") });
        const more = { type: "button", className: "unfold", "aria-label": `Body and headers of ${code}`, onClick: () => setOpen(true) };
        return React.createElement(
          "tr",
          { className: "response", "data-code": code },
          React.createElement("td", { className: "response-col_status" }, code),
          React.createElement("td", { className: "response-col_description" }, about, React.createElement("button", more, "Body and headers")),
          React.createElement("td", { className: "response-col_links" }),
        );
      },
  },
};
