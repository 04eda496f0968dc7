// "Execute" waits until what its operation refers to is read, some tenths of a second after it was opened: Swagger UI shows
// the button at once, and what is asked before that is never sent.

/** A plugin of Swagger UI. */
export const executedOnceResolved = {
  wrapComponents: {
    execute: (Execute, { React }) =>
      function ExecuteOnceResolved(props) {
        const resolved = props.operation.size > 0; // an empty map until then
        return React.createElement(Execute, { ...props, disabled: props.disabled || !resolved });
      },
  },
};
