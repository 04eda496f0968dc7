// What Swagger UI leaves out for people who do not see the page or use no mouse, and for keys that others may see.

const FIRST_KEY = "auth-bearer-value";
const OTHER_KEY = "api_key_value"; // the id of all others

const NAMES = {
  "#servers": "Server",
  ".body-param__text": "Request body",
  ".examples-select-element": "Example",
  ".close-modal": "Close",
  ".auth-btn-wrapper .authorize": "Authorize", // its name must be what it says
};

/** A plugin of Swagger UI: keys are not shown as they are typed, and the first field for one has the focus. */
export const hiddenKeys = {
  wrapComponents: {
    Input: (Input, { React }) =>
      function HiddenKey(props) {
        if (![FIRST_KEY, OTHER_KEY].includes(props.id)) return React.createElement(Input, props);
        const more = { type: "password", autoComplete: "off", autoFocus: props.id === FIRST_KEY };
        return React.createElement(Input, { ...props, ...more });
      },
  },
};

function name(element, text) {
  if (element.ariaLabel !== text) element.ariaLabel = text;
}

/** Name what has no name in the page, and let text that scrolls have the focus, now and whenever something is added. */
export function keepUsable(page) {
  const mend = () => {
    for (const [selector, text] of Object.entries(NAMES)) page.querySelectorAll(selector).forEach((one) => name(one, text));
    for (const field of page.querySelectorAll(".auth-container input")) {
      name(field, `Value: ${field.closest(".auth-container").querySelector("code").textContent}`); // ids are not unique
    }
    for (const text of page.querySelectorAll(".microlight:not([tabindex])")) text.tabIndex = 0;
  };
  new MutationObserver(mend).observe(page, { childList: true, subtree: true });
}
